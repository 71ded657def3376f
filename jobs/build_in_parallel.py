"""Turns a target into one backfill of exactly what it lacks, run by the daemon side by side."""

import time

import dagster as dg
from dagster._core.definitions.assets.graph.asset_graph_subset import AssetGraphSubset
from dagster._core.definitions.events import AssetKeyPartitionKey
from dagster._core.execution.backfill import PartitionBackfill
from dagster._core.utils import make_new_backfill_id

from assets import ASSETS
from assets.partitions import targets
from assets.stage import tag_value
from marin_dagster.experiments import catalog
from marin_dagster.plan import Step, plan
from resources import RESOURCES, StoreResource


@dg.op
def submit(context: dg.OpExecutionContext, store: StoreResource) -> None:
    """Plans like the `build` asset and hands the missing partitions to the daemon."""
    target = context.partition_key
    steps = plan(store.open(), [catalog()[target]])
    missing = [step for step in steps.values() if step.runs]
    if not missing:
        context.log.info(f"{target} and all that it needs is complete")
        return
    backfill = submit_backfill(context.instance, target, missing)
    context.log.info(f"backfill {backfill}: {', '.join(step.recipe.address for step in missing)}")
    context.add_output_metadata(
        {"backfill": dg.MetadataValue.url(f"/runs/b/{backfill}"), "artifacts": len(missing)}
    )


@dg.job(
    partitions_def=targets(),
    description="Builds what a target lacks as one backfill: parallel, queued, needs the daemon.",
)
def build_in_parallel():
    submit()


def submit_backfill(instance: dg.DagsterInstance, target: str, steps: list[Step]) -> str:
    """Queues one backfill and returns its id. Dagster has no public function for this."""
    subset = AssetGraphSubset.from_asset_partition_set(
        {AssetKeyPartitionKey(dg.AssetKey(step.recipe.stage), step.recipe.key) for step in steps},
        asset_graph=dg.Definitions(assets=ASSETS, resources=RESOURCES).resolve_asset_graph(),
    )
    backfill = PartitionBackfill.from_asset_graph_subset(
        backfill_id=make_new_backfill_id(),
        backfill_timestamp=time.time(),
        tags={"marin/target": tag_value(target)},
        dynamic_partitions_store=instance,
        asset_graph_subset=subset,
        title=f"build {target}",
        description=None,
        run_config=None,
    )
    instance.add_backfill(backfill)
    return backfill.backfill_id
