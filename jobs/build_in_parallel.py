"""Turns targets into one backfill of exactly what they lack, run by the daemon side by side."""

import time
from collections.abc import Iterable, Iterator

import dagster as dg
from dagster._core.definitions.asset_key import AssetKey
from dagster._core.definitions.assets.graph.asset_graph_subset import AssetGraphSubset
from dagster._core.definitions.events import AssetKeyPartitionKey
from dagster._core.execution.backfill import BulkActionsFilter, BulkActionStatus, PartitionBackfill
from dagster._core.utils import make_new_backfill_id

from assets import ASSETS
from assets.stage import TARGET_TAG, tag_value
from marin_dagster.experiments import catalog
from marin_dagster.plan import DAMAGED, plan
from marin_dagster.recipe import Recipe
from marin_dagster.store import damage_message
from marin_dagster.targets import resolve
from resources import RESOURCES, StoreResource


class Targets(dg.Config):
    """What to build: addresses `stage/name@version`, or shell patterns such as `evals/*@dev`."""

    targets: list[str]


@dg.op
def submit(context: dg.OpExecutionContext, config: Targets, store: StoreResource) -> None:
    """Plans like the `build` asset and hands the missing partitions to the daemon."""
    opened = store.open()
    try:
        wanted = resolve(config.targets)
    except ValueError as error:
        raise dg.Failure(str(error), allow_retries=False) from error
    steps = plan(opened, wanted, known=catalog().values())
    damaged = [step for step in steps.values() if step.judgement.action == DAMAGED]
    if damaged:
        recipe, why = damaged[0].recipe, damaged[0].judgement.reason
        raise dg.Failure(damage_message(opened.url(recipe), recipe, [why]), allow_retries=False)
    missing = [step.recipe for step in steps.values() if step.runs]
    if not missing:
        context.log.info(f"{', '.join(config.targets)}: all that is needed is complete")
        return
    refuse_chains(missing)
    backfill = backfill_with(context.instance, missing)
    if backfill is not None:
        context.log.info(f"backfill {backfill} builds all of this already; nothing was submitted")
    else:
        title = f"build {', '.join(config.targets)}"
        backfill = submit_backfill(context.instance, title, wanted[0], missing)
        names = ", ".join(recipe.address for recipe in missing)
        context.log.info(f"backfill {backfill}: {names}")
    context.add_output_metadata(
        {"backfill": dg.MetadataValue.url(f"/runs/b/{backfill}"), "artifacts": len(missing)}
    )


@dg.job(
    description=(
        "Builds what targets lack as one backfill: side by side, queued, watched on one page. "
        "Needs the daemon. Where two backfills want one artifact, one makes it and the other waits."
    ),
)
def build_in_parallel():
    submit()


def refuse_chains(missing: Iterable[Recipe]) -> None:
    """Raises Failure where one partition of an asset needs another: a backfill orders assets."""
    chains = {
        recipe.address: need.address
        for recipe in missing
        for need in recipe.needs
        if need.stage == recipe.stage and need in missing
    }
    for later, earlier in chains.items():
        raise dg.Failure(
            f"{later} goes on from {earlier}, which is missing too, and a backfill does not order "
            f"partitions of one asset; build {earlier} first, or both with the asset `build`",
            allow_retries=False,
        )


def backfill_with(instance: dg.DagsterInstance, recipes: Iterable[Recipe]) -> str | None:
    """The id of an unfinished backfill that makes all of these artifacts; None if there is none."""
    wanted = {_partition(recipe) for recipe in recipes}
    going = BulkActionsFilter(statuses=[BulkActionStatus.REQUESTED])
    for backfill in instance.get_backfills(filters=going):
        if wanted <= set(_partitions_of(backfill)):
            return backfill.backfill_id
    return None


def _partitions_of(backfill: PartitionBackfill) -> Iterator[AssetKeyPartitionKey]:
    data = backfill.asset_backfill_data
    if data is not None:
        yield from data.target_subset.iterate_asset_partitions()


def submit_backfill(
    instance: dg.DagsterInstance, title: str, target: Recipe, recipes: Iterable[Recipe]
) -> str:
    """Queues one backfill and returns its id. Dagster has no public function for this."""
    subset = AssetGraphSubset.from_asset_partition_set(
        {_partition(recipe) for recipe in recipes},
        asset_graph=dg.Definitions(assets=ASSETS, resources=RESOURCES).resolve_asset_graph(),
    )
    backfill = PartitionBackfill.from_asset_graph_subset(
        backfill_id=make_new_backfill_id(),
        backfill_timestamp=time.time(),
        tags={TARGET_TAG: tag_value(target.address)},
        dynamic_partitions_store=instance,
        asset_graph_subset=subset,
        title=title.replace("*", "…")[:100],  # Dagster allows no more
        description=None,
        run_config=None,
    )
    instance.add_backfill(backfill)
    return backfill.backfill_id


def _partition(recipe: Recipe) -> AssetKeyPartitionKey:
    return AssetKeyPartitionKey(AssetKey(recipe.stage), recipe.key)
