"""The assets over the toy experiment, in an instance of their own."""

import subprocess
import sys
from pathlib import Path

import dagster as dg
import pytest

from marin_dagster.attempt import RUNNING
from marin_dagster.definitions import defs
from marin_dagster.experiments import catalog
from marin_dagster.process import process_exists
from marin_dagster.store import Store
from tests.dagster_server import wait_for

HEAVY = ("jax", "torch", "transformers", "datasets", "pandas", "pyarrow", "wandb", "lm_eval")


@pytest.fixture
def instance():
    with dg.DagsterInstance.ephemeral() as found:
        yield found


def run(instance, stage: str, key: str, **tags) -> dg.ExecuteInProcessResult:
    return defs.resolve_implicit_global_asset_job_def().execute_in_process(
        instance=instance,
        asset_selection=[dg.AssetKey(stage)],
        partition_key=key,
        raise_on_error=False,
        tags=tags,
    )


def checks(result: dg.ExecuteInProcessResult) -> dict[str, dg.AssetCheckEvaluation]:
    return {item.check_name: item for item in result.get_asset_check_evaluations()}


def failure(result: dg.ExecuteInProcessResult):
    found = result.get_step_failure_events()[0].step_failure_data.user_failure_data
    assert found is not None
    return found


def test_definitions_load():
    dg.Definitions.validate_loadable(defs)


def test_definitions_import_nothing_heavy():
    code = (
        "import sys, marin_dagster.definitions;"
        f"print([name for name in {HEAVY} if name in sys.modules])"
    )
    found = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == "[]"


def test_partition_mappings_name_exactly_the_inputs():
    graph = defs.resolve_asset_graph()
    mapping = graph.get_partition_mapping(dg.AssetKey("deduped"), dg.AssetKey("text"))
    down = graph.get(dg.AssetKey("deduped")).partitions_def
    up = graph.get(dg.AssetKey("text")).partitions_def
    wanted = down.subset_with_partition_keys(["toy@2026.01.01"])
    found = mapping.get_upstream_mapped_partitions_result_for_partitions(wanted, down, up)
    assert set(found.partitions_subset.get_partition_keys()) == {"toy@2026.01.01"}


def test_build_makes_what_is_missing_in_order_and_nothing_else(instance, prefix):
    result = run(instance, "build", "deduped/toy@2026.01.01")
    assert result.success
    store = Store(prefix)
    made = [
        store.record(catalog()[f"{stage}/toy@2026.01.01"]).ended
        for stage in ("raw", "text", "deduped")
    ]
    assert made == sorted(made)
    assert instance.get_materialized_partitions(dg.AssetKey("raw")) == {"toy@2026.01.01"}
    assert instance.get_materialized_partitions(dg.AssetKey("checkpoints")) == set()
    again = run(instance, "build", "deduped/toy@2026.01.01")
    metadata = again.asset_materializations_for_node("build")[0].metadata
    assert (metadata["built"].value, metadata["reused"].value) == (0, 1)


def in_parallel(instance, *targets: str) -> dg.ExecuteInProcessResult:
    job = defs.resolve_job_def("build_in_parallel")
    config = {"ops": {"submit": {"config": {"targets": list(targets)}}}}
    return job.execute_in_process(instance=instance, run_config=config, raise_on_error=False)


def backfills(instance) -> list[set[tuple[str, str]]]:
    return [
        {
            (item.asset_key.to_user_string(), item.partition_key)
            for item in found.asset_backfill_data.target_subset.iterate_asset_partitions()
        }
        for found in instance.get_backfills()
    ]


def test_build_in_parallel_queues_exactly_what_is_missing_once(instance, prefix):
    run(instance, "raw", "toy@dev")
    targets = ("deduped/toy@dev", "text/t*@2026.01.01")
    assert in_parallel(instance, *targets).success
    wanted = {("text", "toy@dev"), ("deduped", "toy@dev")}
    wanted |= {("raw", "toy@2026.01.01"), ("text", "toy@2026.01.01")}
    assert backfills(instance) == [wanted]
    assert in_parallel(instance, "text/toy@dev").success  # the first one makes it already
    assert len(backfills(instance)) == 1


def test_build_in_parallel_refuses_an_unknown_target(instance, prefix):
    found = failure(in_parallel(instance, "deduped/tory@dev"))
    assert "did you mean deduped/toy@dev" in found.description
    assert backfills(instance) == []


def test_build_makes_several_targets_by_one_plan(instance, prefix):
    job = defs.resolve_implicit_global_asset_job_def()
    result = job.execute_in_process(
        instance=instance,
        asset_selection=[dg.AssetKey("build")],
        partition_key="raw/toy@dev",
        run_config={"ops": {"build": {"config": {"also": ["text/toy@2026.*"]}}}},
    )
    metadata = result.asset_materializations_for_node("build")[0].metadata
    assert metadata["built"].value == 5


def test_a_materialization_shows_counts_path_and_links_to_its_inputs(instance, prefix):
    run(instance, "raw", "toy@dev")
    result = run(instance, "text", "toy@dev")
    metadata = result.asset_materializations_for_node("text")[0].metadata
    assert "[raw/toy@dev](/assets/raw?view=partitions&partition=toy%40dev)" in (
        metadata["inputs"].value
    )
    assert "| kept | 2 |" in metadata["counts"].value
    assert Path(metadata["path"].value, "words.txt").read_text() == "ONE\nTWO\n"
    assert metadata["dagster/row_count"].value == 2


def test_a_changed_field_shows_as_a_warning_that_names_it(instance, prefix, edit):
    run(instance, "build", "text/toy@2026.01.01")
    edit("text/toy@2026.01.01", suffix="!")
    result = run(instance, "text", "toy@2026.01.01")
    assert result.success
    check = checks(result)["up_to_date"]
    assert not check.passed
    assert check.severity == dg.AssetCheckSeverity.WARN
    assert check.description == "recipe suffix:  → !"
    assert check.partition == "toy@2026.01.01"


def test_a_missing_input_fails_with_the_way_out(instance, prefix):
    result = run(instance, "text", "toy@dev")
    assert not result.success
    found = failure(result)
    assert found.metadata["reason"].value == "bad_input"
    assert "marin build raw/toy@dev --run" in found.description


def test_counts_that_do_not_balance_fail_the_blocking_check(instance, prefix, edit):
    run(instance, "raw", "toy@dev")
    edit("text/toy@dev", misbehave="lose")
    result = run(instance, "text", "toy@dev")
    assert not result.success
    assert not checks(result)["counts"].passed
    assert "1 words are unaccounted for" in failure(result).description


def test_an_accelerated_stage_runs_in_a_worker_process(instance, prefix):
    assert run(instance, "build", "checkpoints/toy@2026.01.01").success
    record = Store(prefix).record(catalog()["checkpoints/toy@2026.01.01"])
    import os

    assert record.summary.numbers["process"] != os.getpid()
    assert record.run_id in {found.run_id for found in instance.get_runs()}


@pytest.mark.parametrize(
    ("ending", "reason", "words"),
    [
        ("raise", "diverged", "loss is not finite at step 3"),
        ("kill", "killed", "signal SIGKILL"),
        ("leave", "error", "ended without a result"),
    ],
)
def test_a_worker_that_fails_says_why(instance, prefix, edit, ending, reason, words):
    run(instance, "build", "deduped/toy@dev")
    edit("checkpoints/toy@dev", ending=ending)
    result = run(instance, "checkpoints", "toy@dev")
    assert not result.success
    found = failure(result)
    assert words in found.description
    assert found.metadata["reason"].value == reason
    recipe = catalog()["checkpoints/toy@dev"]
    assert Store(prefix).record(recipe) is None
    assert Store(prefix).last_attempt(recipe).reason == reason


def test_a_killed_build_leaves_no_worker_behind(prefix, tmp_path):
    code = (
        "import dataclasses, dagster as dg;"
        "from marin_dagster.experiments import catalog;"
        "catalog()['checkpoints/toy@dev'].__dict__['seconds'] = 60.0;"
        "from marin_dagster.definitions import defs;"
        "job = defs.resolve_implicit_global_asset_job_def();"
        "job.execute_in_process(asset_selection=[dg.AssetKey('build')],"
        " partition_key='checkpoints/toy@dev', instance=dg.DagsterInstance.ephemeral())"
    )
    parent = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", code],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    store, recipe = Store(prefix), catalog()["checkpoints/toy@dev"]
    worker = wait_for(lambda: _worker_of(store, recipe), 300)
    assert store.last_attempt(recipe).state == RUNNING
    parent.kill()
    parent.wait()
    wait_for(lambda: not process_exists(worker), 300)
    assert store.record(recipe) is None


def _worker_of(store, recipe) -> int | None:
    folder = Path(store.url(recipe), ".work")
    for log in folder.glob("*/attempt-*.messages"):
        for word in log.read_text().split("worker process ")[1:]:
            return int(word.split('"')[0])
    return None
