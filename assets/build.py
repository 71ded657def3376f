"""Turns targets into everything that they need: the `build` asset."""

from collections.abc import Iterator, Mapping
from typing import Any

import dagster as dg
from pydantic import Field

from assets import metadata
from assets.failure import failed_below, noted
from assets.partitions import targets
from assets.progress import announce
from assets.stage import ARTIFACT_TAG, FORCE_TAG, OWNERS, TARGET_TAG, is_forced, tag, tag_value
from assets.steps import StepResult, StepRun, run_steps
from marin_dagster.environment import read_environment
from marin_dagster.experiments import find
from marin_dagster.plan import DAMAGED, Step, describe, drift_behind, plan
from marin_dagster.recipe import Recipe
from marin_dagster.store import Store, damage_message
from marin_dagster.targets import resolve
from resources import StoreResource

DESCRIPTION = """\
Materialize a target here to build all that it needs; what is complete is reused.

Each missing artifact is made by a run of its own, with the tag `marin/target`, and those that do
not need each other run side by side. Look first: `marin plan stage/name@version` prints the same
plan and runs nothing. `also` in the run's config adds targets, or patterns such as
`evals/*@2026.*`, to the plan.

A grey partition was never asked for as a target; its artifact may exist all the same, as the page
of its own stage and `marin status` show.
"""


class BuildConfig(dg.Config):
    """What else a run of `build` makes: addresses, or shell patterns over them."""

    also: list[str] = Field(default_factory=list)


@dg.asset(
    group_name="targets",
    kinds={"dagster"},
    owners=OWNERS,
    description=DESCRIPTION,
    partitions_def=targets(),
    backfill_policy=dg.BackfillPolicy.multi_run(1),
)
def build(
    context: dg.AssetExecutionContext, config: BuildConfig, store: StoreResource
) -> dg.MaterializeResult:
    with noted(context):
        return _build(context, config, store.open())


def _build(
    context: dg.AssetExecutionContext, config: BuildConfig, opened: Store
) -> dg.MaterializeResult:
    try:
        wanted = resolve([context.partition_key, *config.also])
    except ValueError as error:
        found = {"reason": "bad_input"}
        raise dg.Failure(str(error), metadata=found, allow_retries=False) from error
    tag(context, wanted[0])
    forced = is_forced(context, wanted[0])
    steps = plan(opened, wanted, force=forced)
    _look(context, opened, wanted, steps)
    todo = [step for step in steps.values() if step.runs or step.recipe in wanted]
    rows = [_row(step.recipe, "reused") for step in steps.values() if step not in todo]
    failed = []
    for result in _run(context, todo, wanted, forced):
        recipe = find(result.address)
        if result.failure is not None:
            failed.append(result)
            continue
        record = opened.record(recipe)
        made = record is not None and record.run_id == result.run_id
        what = f"{_outcome(opened, recipe)}, {result.seconds} s" if made else "reused"
        announce(context, f"      {recipe.address}: {what}")
        rows.append(_row(recipe, "built" if made else "reused", result.seconds))
    if failed:
        message = "\n".join(_failure(opened, find(one.address), one) for one in failed)
        raise failed_below(context, failed[0].run_id, message)
    counts = {what: sum(row["was"] == what for row in rows) for what in ("built", "reused")}
    return dg.MaterializeResult(
        metadata={
            **counts,
            "artifacts": dg.MetadataValue.md(metadata.table(rows)),
            "path": dg.MetadataValue.path(opened.url(wanted[0])),
        }
    )


def _look(
    context: dg.AssetExecutionContext,
    opened: Store,
    wanted: tuple[Recipe, ...],
    steps: Mapping[str, Step],
) -> None:
    """Logs the plan; refuses one with damaged artifacts."""
    for step in steps.values():
        context.log.info(f"plan: {step.recipe.address}: {describe(step.judgement)}")
        if step.judgement.action == DAMAGED:
            raise dg.Failure(
                damage_message(opened.url(step.recipe), step.recipe, [step.judgement.reason]),
                metadata={"reason": "bad_input"},
                allow_retries=False,
            )
    for address, judgement in drift_behind(opened, wanted, steps).items():
        context.log.warning(f"reused as it is: {address}: {describe(judgement)}")


def _run(
    context: dg.AssetExecutionContext, todo: list[Step], wanted: tuple[Recipe, ...], forced: bool
) -> Iterator[StepResult]:
    environment = read_environment()
    runs = []
    for recipe in (step.recipe for step in todo):
        tags = {
            TARGET_TAG: tag_value(context.partition_key),
            ARTIFACT_TAG: tag_value(recipe.address),
        }
        if forced and recipe in wanted:
            tags[FORCE_TAG] = tag_value(recipe.address)
        loggers = context.run_config.get("loggers", {})
        runs.append(StepRun(address=recipe.address, tags=tags, loggers=loggers))
    return run_steps(
        context.instance,
        runs,
        slots=environment.steps,
        workers=environment.placement.workers,
        say=lambda line: announce(context, line),
    )


def _row(recipe: Recipe, was: str, seconds: float = 0.0) -> dict[str, Any]:
    return {"artifact": metadata.link(recipe), "was": was, "seconds": seconds}


def _failure(store: Store, recipe: Recipe, result: StepResult) -> str:
    last = store.last_attempt(recipe)
    own = last is not None and last.run_id == result.run_id
    log = f" (log: {store.log_url(recipe, last.number)})" if last and own else ""
    return f"{recipe.address} failed: {result.failure}{log}; its run is {result.run_id}"


def _outcome(store: Store, recipe: Recipe) -> str:
    """`built: read 500 documents = kept 480 + dropped short 20`."""
    record = store.record(recipe)
    counts = record.summary.counts if record else None
    if record is None or counts is None:
        return headline(record.summary.numbers) if record else "complete"
    lost = [*counts.dropped.items(), *counts.errors.items()]
    terms = "".join(f" + {reason} {number:,}" for reason, number in lost if number)
    return f"read {counts.read:,} {counts.unit} = kept {counts.kept:,}{terms}"


def headline(numbers: Mapping[str, Any]) -> str:
    """The numbers that say how well a stage without counts did: losses and scores."""
    named = [
        f"{name} {value:.4g}"
        for name, value in numbers.items()
        if isinstance(value, float) and name.endswith(("loss", "acc", "per_byte", "difference"))
    ]
    return ", ".join(named[:6]) or "complete"
