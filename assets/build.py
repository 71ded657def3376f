"""Turns a target into everything that it needs: the `build` asset."""

import time
from collections.abc import Iterator, Mapping
from typing import Any

import dagster as dg

from assets import metadata
from assets.failure import failed_below, noted
from assets.partitions import targets
from assets.progress import announce
from assets.stage import FORCE_TAG, OWNERS, is_forced, tag_value
from marin_dagster.experiments import catalog
from marin_dagster.failure import MESSAGE_CHARACTERS
from marin_dagster.plan import DAMAGED, REUSE, Step, describe, drift_behind, plan
from marin_dagster.recipe import Recipe
from marin_dagster.store import Store, damage_message
from resources import RESOURCES, StoreResource

DESCRIPTION = """\
Materialize a target here to build all that it needs, in order; what is complete is reused.

Each missing artifact is made by a run of its own, with the tag `marin/target`. Look first:
`marin plan stage/name@version` prints the same plan and runs nothing.

A grey partition was never asked for as a target; its artifact may exist all the same, as the page
of its own stage and `marin status` show.
"""


@dg.asset(
    group_name="targets",
    kinds={"dagster"},
    owners=OWNERS,
    description=DESCRIPTION,
    partitions_def=targets(),
    backfill_policy=dg.BackfillPolicy.multi_run(1),
)
def build(context: dg.AssetExecutionContext, store: StoreResource) -> dg.MaterializeResult:
    with noted(context):
        return _build(context, store.open())


def _build(context: dg.AssetExecutionContext, opened: Store) -> dg.MaterializeResult:
    target = catalog()[context.partition_key]
    forced = is_forced(context, target)
    steps = plan(opened, [target], force=forced)
    for step in steps.values():
        context.log.info(f"plan: {step.recipe.address}: {describe(step.judgement)}")
        if step.judgement.action == DAMAGED:
            raise dg.Failure(
                damage_message(opened.url(step.recipe), step.recipe, [step.judgement.reason]),
                metadata={"reason": "bad_input"},
                allow_retries=False,
            )
    for address, judgement in drift_behind(opened, [target], steps).items():
        context.log.warning(f"reused as it is: {address}: {describe(judgement)}")
    rows = []
    for step, result, seconds in _run(context, opened, steps, target, forced):
        what = "built" if result is not None else "reused"
        rows.append({"artifact": metadata.link(step.recipe), "was": what, "seconds": seconds})
    counts = {what: sum(row["was"] == what for row in rows) for what in ("built", "reused")}
    return dg.MaterializeResult(
        metadata={
            **counts,
            "artifacts": dg.MetadataValue.md(metadata.table(rows)),
            "path": dg.MetadataValue.path(opened.url(target)),
        }
    )


def _run(
    context: dg.AssetExecutionContext,
    opened: Store,
    steps: dict[str, Step],
    target: Recipe,
    forced: bool,
) -> Iterator[tuple[Step, dg.ExecuteInProcessResult | None, float]]:
    """Runs the plan's steps one after the other, each as a run in this instance.

    Threads would deadlock on the SQLite event log.
    """
    job = _stages_job()
    todo = [step for step in steps.values() if step.runs or step.recipe is target]
    for step in steps.values():
        if step not in todo and step.judgement.action == REUSE:
            yield step, None, 0.0
    for number, step in enumerate(todo, start=1):
        recipe = step.recipe
        announce(context, f"[{number}/{len(todo)}] {recipe.address}")
        started = time.monotonic()
        tags = {"marin/target": tag_value(target.address), "marin/artifact": recipe.key}
        if forced and recipe is target:
            tags[FORCE_TAG] = tag_value(target.address)
        result = job.execute_in_process(
            instance=context.instance,
            asset_selection=[dg.AssetKey(recipe.stage)],
            partition_key=recipe.key,
            raise_on_error=False,
            tags=tags,
            run_config={"loggers": context.run_config.get("loggers", {})},
        )
        if not result.success:
            last = opened.last_attempt(recipe)
            log = f" (log: {opened.log_url(recipe, last.number)})" if last else ""
            message = f"{recipe.address} failed: {_why(result)}{log}"
            raise failed_below(context, result.run_id, message)
        seconds = round(time.monotonic() - started, 1)
        announce(context, f"      {_outcome(opened, recipe)}, {seconds} s")
        record = opened.record(recipe)
        made = record is not None and record.run_id == result.run_id
        yield step, result if made else None, seconds


def _stages_job() -> dg.JobDefinition:
    """The job over the stages alone; a definitions object cannot be reached from within a run."""
    from assets import STAGES

    stages = dg.Definitions(assets=STAGES, resources=RESOURCES, executor=dg.in_process_executor)
    return stages.resolve_implicit_global_asset_job_def()


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


def _why(result: dg.ExecuteInProcessResult) -> str:
    """The failure's own words, without the frames around them."""
    for event in result.get_step_failure_events():
        data = event.step_failure_data
        failed = data.user_failure_data
        if failed is not None and failed.description:
            return failed.description
        error = data.error
        if error is not None and error.cls_name == "DagsterExecutionInterruptedError":
            return "interrupted; build again to go on from its last resume point"
        if error is not None:
            own = error.cause or error  # without Dagster's wrapper
            return own.message.strip()[:MESSAGE_CHARACTERS]
    return "see the log of its run"
