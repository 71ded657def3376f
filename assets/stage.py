"""Turns a stage into an asset: what all stages have in common."""

import warnings
from collections.abc import Iterator
from functools import partial

import dagster as dg

from assets import metadata
from assets.failure import explained, noted
from assets.partitions import deps_of, keys_of, partitions_of
from assets.progress import reporter
from marin_dagster.experiments import catalog
from marin_dagster.recipe import Placement, Recipe
from marin_dagster.store import CountsError, Outcome
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
        description=f"{description}\n\n{metadata.partition_list(recipes.values())}",
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
        placement = Placement(
            workers=executor.processes(), wandb_mode=tracker.mode(), hub_token=hub.token()
        )

        try:
            with noted(context), explained(context, opened, recipe):
                outcome = opened.build(
                    recipe,
                    work=partial(launcher.run, context) if recipe.accelerated else None,
                    placement=placement,
                    force=is_forced(context, recipe),
                    run_id=context.run_id,
                    progress=reporter(context, recipe.address),
                    log=context.log.info,
                )
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


def tag_value(address: str) -> str:
    """An address as the value of a run tag."""
    return address.replace("@", "__")


def is_forced(context: dg.AssetExecutionContext, recipe: Recipe) -> bool:
    """Whether the run was asked to build this recipe even if it is complete."""
    return context.run.tags.get(FORCE_TAG) == tag_value(recipe.address)


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
