"""One rule for what a partition reads, whoever asks: plan, run, backfill, sensor, check."""

import sys
from dataclasses import dataclass
from typing import ClassVar

import dagster as dg
import pytest
from dagster._core.remote_representation.external_data import RepositorySnap
from dagster._serdes import deserialize_value, serialize_value

from assets import partitions
from jobs.build_in_parallel import refuse_chains
from marin_dagster.definitions import defs
from marin_dagster.experiments import catalog
from marin_dagster.kinds import Documents
from marin_dagster.plan import plan
from marin_dagster.recipe import walk
from marin_dagster.record import RECORD
from marin_dagster.store import Store
from tests.integration.test_assets import checks, failure, instance, run

__all__ = ["instance"]
_opened: list[str] | None = None


@pytest.fixture(scope="module")
def seen_by_the_daemon() -> dict[str, set[str]]:
    """What each partition reads, from the definitions as they arrive at webserver and daemon."""
    snapshot = deserialize_value(
        serialize_value(RepositorySnap.from_def(defs.get_repository_def())), RepositorySnap
    )
    graph = defs.resolve_asset_graph()
    found: dict[str, set[str]] = {address: set() for address in catalog()}
    for node in snapshot.asset_nodes:
        for edge in node.parent_edges:
            up = graph.get(edge.parent_asset_key).partitions_def
            down = graph.get(node.asset_key).partitions_def
            for key in down.get_partition_keys():
                wanted = down.subset_with_partition_keys([key])
                parents = (
                    edge.partition_mapping.get_upstream_mapped_partitions_result_for_partitions(
                        wanted, down, up
                    )
                )
                stage, above = node.asset_key.path[-1], edge.parent_asset_key.path[-1]
                keys = parents.partitions_subset.get_partition_keys()
                found[f"{stage}/{key}"] |= {f"{above}/{item}" for item in keys}
    return found


def test_a_backfill_orders_by_the_same_partitions_that_a_plan_needs(seen_by_the_daemon):
    for address, recipe in catalog().items():
        assert seen_by_the_daemon[address] == {item.address for item in recipe.needs}, address


def test_a_plan_runs_what_the_daemon_would(seen_by_the_daemon, prefix):
    def closure(address):
        return {address}.union(*(closure(above) for above in seen_by_the_daemon[address]))

    for target in ("deduped/toy@2026.01.01", "evals/live.step-2@2026.01.01"):
        steps = plan(Store(prefix), [catalog()[target]])
        assert set(steps) == closure(target) == set(walk([catalog()[target]]))


@pytest.mark.parametrize("stage", ["deduped", "checkpoints"])
def test_a_missing_input_is_named_by_its_key_before_anything_starts(instance, prefix, stage):
    result = run(instance, stage, "toy@2026.01.01")
    assert not result.success
    named = {"deduped": "text/toy@2026.01.01", "checkpoints": "deduped/toy@2026.01.01"}[stage]
    assert f"input {named} is not complete" in failure(result).description
    assert Store(prefix).attempts(catalog()[f"{stage}/toy@2026.01.01"]) == []


def test_checks_of_a_partition_open_its_own_files_and_those_of_its_inputs(instance, prefix):
    run(instance, "build", "raw/toy@2026.01.01")
    run(instance, "build", "raw/toy@dev")
    with opened(prefix) as paths:
        result = run(instance, "text", "toy@2026.01.01")
    assert {item.partition for item in checks(result).values()} == {"toy@2026.01.01"}
    assert all(item.passed for item in checks(result).values())
    # records of other versions are compared with this one; nothing else of theirs is opened
    folders = {"/".join(path.split("/")[:3]) for path in paths if not path.endswith(RECORD)}
    assert folders == {"raw/toy/2026.01.01", "text/toy/2026.01.01"}


def test_what_a_run_publishes_shows_as_a_partition(instance, prefix):
    assert run(instance, "build", "checkpoints/live@2026.01.01").success
    found = instance.get_materialized_partitions(dg.AssetKey("snapshots"))
    assert found == {"live.step-2@2026.01.01"}


class opened:
    """Collects the paths below a folder that this process opens."""

    def __init__(self, folder: str):
        self.folder = f"{folder}/"

    def __enter__(self) -> list[str]:
        global _opened
        _opened = self.paths = []
        sys.addaudithook(self._audit)
        return self.paths

    def __exit__(self, *_) -> None:
        global _opened
        _opened = None

    def _audit(self, event: str, arguments: tuple) -> None:
        if event == "open" and _opened is self.paths:
            path = arguments[0]
            if isinstance(path, str) and path.startswith(self.folder):
                self.paths.append(path.removeprefix(self.folder))


@dataclass(frozen=True, kw_only=True)
class Again(Documents):
    """Goes on from another artifact of its stage."""

    stage: ClassVar[str] = "text"

    before: "Again | None" = None

    def build(self, ctx):
        raise NotImplementedError


def test_a_partition_that_reads_one_of_its_own_asset_is_left_to_build(monkeypatch):
    one = Again(name="one", version="dev")
    two = Again(name="two", version="dev", before=one)
    monkeypatch.setattr(partitions, "catalog", lambda: walk([two]))
    assert partitions.deps_of("text") == []
    with pytest.raises(dg.Failure, match="text/two@dev goes on from text/one@dev"):
        refuse_chains([one, two])
    refuse_chains([two])
