"""Turns a stage into an asset: what all stages have in common."""

import warnings
from collections.abc import Collection, Iterator
from functools import partial

import dagster as dg

from assets import metadata
from assets.failure import explained, noted
from assets.partitions import deps_of, keys_of, partitions_of
from assets.progress import Reporter
from assets.references import code_references
from marin_dagster.experiments import catalog, experiment_of
from marin_dagster.recipe import Placement, Recipe, Summary
from marin_dagster.store import BuildContext, CountsError, Outcome, Store
from resources import (
    ExecutorResource,
    HubResource,
    LauncherResource,
    StoreResource,
    TrackerResource,
)

# Partitioned checks are a preview feature of the Dagster version that is pinned.
warnings.filterwarnings("ignore", category=dg.PreviewWarning)
warnings.filterwarnings("ignore", category=dg.BetaWarning)

OWNERS = ["team:laboratory"]
CODE_VERSION = "1"  # of all stages alike: what changed in a partition, its own check says
FORCE_TAG = "marin/force"
TARGET_TAG = "marin/target"
ARTIFACT_TAG = "marin/artifact"
EXPERIMENT_TAG = "marin/experiment"
ATTEMPT_TAG = "marin/attempt"
POOL = "accelerator"  # one training or evaluation at a time


def stage_asset(
    stage: str, *, group: str, kinds: set[str], description: str
) -> dg.AssetsDefinition:
    """The asset of a stage; materializing `name@version` builds that artifact, or reuses it."""
    recipes = {key: catalog()[f"{stage}/{key}"] for key in keys_of(stage)}
    partitions = partitions_of(stage)
    accelerated = any(recipe.accelerated for recipe in recipes.values())

    @dg.asset(
        name=stage,
        group_name=group,
        kinds=kinds,
        owners=OWNERS,
        description=_describe(stage, description, recipes.values()),
        metadata={"dagster/code_references": code_references(stage, recipes.values())},
        code_version=CODE_VERSION,
        partitions_def=partitions,
        deps=deps_of(stage),
        pool=POOL if accelerated else None,
        backfill_policy=dg.BackfillPolicy.multi_run(1),
        output_required=False,
        check_specs=_checks(stage, partitions),
    )
    def asset(
        context: dg.AssetExecutionContext,
        store: StoreResource,
        launcher: LauncherResource,
        executor: ExecutorResource,
        tracker: TrackerResource,
        hub: HubResource,
    ) -> Iterator[dg.MaterializeResult | dg.AssetCheckResult]:
        opened = store.open()
        recipe = recipes[context.partition_key]
        tag(context, recipe, **{ARTIFACT_TAG: tag_value(recipe.address)})
        placement = Placement(
            workers=executor.processes(),
            wandb_mode=tracker.mode(),
            hub_token=hub.token(),
            checkpoint_roots=launcher.checkpoint_roots(),
            grace_seconds=launcher.grace_seconds,
            devices=launcher.devices(),
        )
        try:
            outcome = _build(context, opened, recipe, launcher, placement)
        except dg.Failure as failed:
            if isinstance(failed.__cause__, CountsError):
                found = {"reason": failed.__cause__.message}
                yield dg.AssetCheckResult(check_name="counts", passed=False, metadata=found)
            raise
        _say(context, recipe.address, outcome)
        yield dg.MaterializeResult(
            metadata=metadata.of(opened, recipe, outcome),
            data_version=dg.DataVersion(outcome.record.digest),
            check_results=[metadata.up_to_date(outcome), metadata.counts(outcome)],
        )

    return asset


def _build(
    context: dg.AssetExecutionContext,
    opened: Store,
    recipe: Recipe,
    launcher: LauncherResource,
    placement: Placement,
) -> Outcome:
    """Builds or reuses the artifact; shows its progress, and why it fails if it does."""
    report = Reporter(context, recipe)
    try:
        with noted(context), explained(context, opened, recipe):
            return opened.build(
                recipe,
                work=partial(_work, context, launcher),
                placement=placement,
                force=is_forced(context, recipe),
                run_id=context.run_id,
                progress=report,
                log=context.log.info,
            )
    finally:
        report.close()


def _work(
    context: dg.AssetExecutionContext, launcher: LauncherResource, build: BuildContext
) -> Summary:
    """Runs the recipe here or in a worker."""
    number = str(build.attempt.info.number)
    context.instance.add_run_tags(context.run_id, {ATTEMPT_TAG: number})
    if build.recipe.accelerated:
        return launcher.run(context, build)
    return build.recipe.build(build)


def tag(context: dg.AssetExecutionContext, recipe: Recipe, **more: str) -> None:
    """Makes a run findable by its target and more, however it was launched."""
    tags = {
        TARGET_TAG: tag_value(recipe.address),
        EXPERIMENT_TAG: experiment_of(recipe.address),
        **more,
    }
    new = {name: value for name, value in tags.items() if name not in context.run.tags}
    context.instance.add_run_tags(context.run_id, new)


def tag_value(address: str) -> str:
    """An address as the value of a run tag."""
    return address.replace("@", "__")


def is_forced(context: dg.AssetExecutionContext, recipe: Recipe) -> bool:
    """Whether the run was asked to build this recipe even if it is complete."""
    return context.run.tags.get(FORCE_TAG) == tag_value(recipe.address)


def _describe(stage: str, text: str, recipes: Collection[Recipe]) -> str:
    """What the stage does, how to look at it and build it, and what makes its partitions."""
    key = next((recipe.key for recipe in recipes), "name@version")
    return f"""{text.strip()}

Checks: **counts** (blocking: something was kept, and read = kept + dropped + errors) and
**up_to_date** (a warning: recipe, code or inputs are no longer those that it was made with).

| to | do |
| --- | --- |
| look first | `marin plan {stage}/{key}` |
| build it and what it needs | `marin build {stage}/{key} --run`, or materialize `build` |
| build it alone | *Materialize*; it fails if an input is missing, and says which |
| see what is known of it | its partition, or `marin show {stage}/{key}` |

{metadata.partition_list(recipes)}
"""


def _checks(stage: str, partitions: dg.PartitionsDefinition) -> list[dg.AssetCheckSpec]:
    return [
        dg.AssetCheckSpec(
            "up_to_date",
            asset=stage,
            partitions_def=partitions,
            description="Recipe, code and inputs are those that the artifact was made with.",
        ),
        dg.AssetCheckSpec(
            "counts",
            asset=stage,
            partitions_def=partitions,
            blocking=True,
            description="Something was kept, and read = kept + dropped + errors.",
        ),
    ]


def _say(context: dg.AssetExecutionContext, address: str, outcome: Outcome) -> None:
    if outcome.reused:
        context.log.info(f"{address}: reused")
        for item in (*outcome.judgement.drifted, *outcome.judgement.stale):
            context.log.warning(f"{address} is not what would be built now: {item}")
