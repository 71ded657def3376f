"""Turns a stage into an asset: what all stages have in common."""

import warnings
from collections.abc import Iterator

import dagster as dg

from assets import metadata
from assets.partitions import deps_of, keys_of, partitions_of
from assets.progress import reporter
from marin_dagster.experiments import catalog
from marin_dagster.recipe import Placement, StageError
from marin_dagster.store import BuildContext, CountsError, Outcome
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
POOL = "accelerator"  # one training or evaluation at a time


def stage_asset(
    stage: str, *, group: str, kinds: set[str], description: str, code_version: str = "1"
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
        code_version=code_version,
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

        def launch(build: BuildContext):
            return launcher.run(context, build)

        try:
            outcome = opened.build(
                recipe,
                work=launch if recipe.accelerated else None,
                placement=placement,
                force=context.run.tags.get("marin/force") == recipe.address.replace("@", "__"),
                run_id=context.run_id,
                progress=reporter(context, recipe.address),
                log=context.log.info,
            )
        except CountsError as error:
            yield dg.AssetCheckResult(
                check_name="counts", passed=False, metadata={"reason": error.message}
            )
            raise metadata.failure(opened, recipe, error) from error
        except StageError as error:
            raise metadata.failure(opened, recipe, error) from error
        _say(context, recipe.address, outcome)
        yield dg.MaterializeResult(
            metadata=metadata.of(opened, recipe, outcome),
            data_version=dg.DataVersion(outcome.record.digest),
            check_results=[metadata.up_to_date(outcome), metadata.counts(outcome)],
        )

    return asset


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
