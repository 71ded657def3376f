"""Turns the way in which a build ended into how its run ends: a reason, evidence, a new try."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import dagster as dg

from marin_dagster.failure import RETRIES, evidence_of, message_of, reason_of
from marin_dagster.process import family
from marin_dagster.recipe import Recipe
from marin_dagster.store import Store
from resources.workers import REASON_TAG, note_reason, note_worker


@contextmanager
def noted(context: dg.AssetExecutionContext) -> Iterator[None]:
    """Writes on the run which process works on it and, if the block fails, why.

    A block that fails or is interrupted leaves none of the processes that it has started.
    """
    note_worker(context)
    try:
        with family():
            yield
    except dg.RetryRequested:
        raise
    except BaseException as error:
        reason = reason_of(error)
        if isinstance(error, dg.Failure) and "reason" in error.metadata:
            reason = str(error.metadata["reason"].value)
        note_reason(context.instance, context.run, reason)
        raise


@contextmanager
def explained(context: dg.AssetExecutionContext, store: Store, recipe: Recipe) -> Iterator[None]:
    """Ends a block that raises with a new try, or with a failure that says why.

    Which reason is tried again, and how often, `marin_dagster.failure.RETRIES` says. Interrupts
    pass.
    """
    try:
        yield
    except Exception as error:
        reason = reason_of(error)
        retry = RETRIES[reason]
        if context.retry_number < retry.times:
            context.log.warning(
                f"{recipe.address}: {reason}: {message_of(error)}; trying again in "
                f"{retry.delay_seconds:g} s ({context.retry_number + 1} of {retry.times})"
            )
            raise dg.RetryRequested(retry.times, retry.delay_seconds) from error
        raise failure(context, store, recipe, error) from error


def failure(
    context: dg.AssetExecutionContext, store: Store, recipe: Recipe, error: Exception
) -> dg.Failure:
    """What a failed run shows: the reason and its evidence, for machines, and the log."""
    reason = reason_of(error)
    found: dict[str, Any] = {
        "reason": reason,
        "evidence": dg.MetadataValue.json(evidence_of(error)),
        "artifact": recipe.address,
    }
    last = store.last_attempt(recipe)
    if last is not None and last.run_id == context.run_id:
        tail = "\n".join(last.log_tail)
        found["attempt"] = last.number
        found["log"] = dg.MetadataValue.md(f"```\n{tail}\n```")
        found["log_file"] = dg.MetadataValue.path(store.log_url(recipe, last.number))
    return dg.Failure(f"{reason}: {message_of(error)}", metadata=found, allow_retries=False)


def failed_below(
    context: dg.AssetExecutionContext, run_id: str, message: str
) -> dg.Failure | KeyboardInterrupt:
    """How a run ends whose own run for a step has not succeeded: for the same reason."""
    run = context.instance.get_run_by_id(run_id)
    if run is not None and run.status == dg.DagsterRunStatus.CANCELED:
        return KeyboardInterrupt(message)
    found = {
        "reason": (run.tags.get(REASON_TAG) if run else None) or "error",
        "run": dg.MetadataValue.dagster_run(run_id),
    }
    return dg.Failure(message, metadata=found, allow_retries=False)
