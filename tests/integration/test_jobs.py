"""Schedules and sensors, evaluated as the daemon does; test_automation.py follows real ticks."""

import datetime

import dagster as dg
import pytest
from click.testing import CliRunner
from dagster._core.utils import make_new_run_id

from jobs import SCHEDULES
from jobs.evaluate_checkpoints import due, evaluate_checkpoints
from jobs.renew_experiment import EXPERIMENT_TAG, renew_experiment
from marin_dagster import experiments
from marin_dagster.attempt import start_attempt
from marin_dagster.cli import main
from marin_dagster.definitions import defs
from marin_dagster.experiments import catalog
from marin_dagster.store import Store
from resources import StoreResource, WebserverResource

LAST, EARLY = "evals/live@2026.01.01", "evals/live.step-2@2026.01.01"
NOWHERE = "http://127.0.0.1:9"
TIME = datetime.datetime(2026, 12, 1, 2, tzinfo=datetime.UTC)


@pytest.fixture
def store(prefix) -> Store:
    return Store(prefix)


@pytest.fixture(scope="module")
def instance(tmp_path_factory):
    with dg.DagsterInstance.local_temp(str(tmp_path_factory.mktemp("instance"))) as found:
        yield found


def wanted(store: Store) -> list[str]:
    return [recipe.address for recipe, _ in due(store)]


def keys(store: Store) -> dict[str, str]:
    return {recipe.address: key for recipe, key in due(store)}


def tick(instance: dg.DagsterInstance):
    (schedule,) = [item for item in SCHEDULES if item.name == "renew_rounds"]
    context = dg.build_schedule_context(
        instance=instance,
        scheduled_execution_time=TIME,
        repository_def=defs.get_repository_def(),
    )
    return schedule.evaluate_tick(context)


def test_a_tick_asks_for_one_run_that_names_its_time(instance):
    (request,) = tick(instance).run_requests
    config = request.run_config["ops"]["add_version"]["config"]
    assert config == {"experiment": "rounds", "occasion": f"schedule {request.run_key}"}
    assert request.run_key == "2026-12-01T02:00:00+00:00"


def test_a_tick_skips_while_the_run_before_goes_on_and_says_which(instance):
    for status, goes_on in (("STARTED", True), ("FAILURE", False)):
        run = dg.DagsterRun(
            job_name=renew_experiment.name,
            run_id=make_new_run_id(),
            tags={EXPERIMENT_TAG: "rounds"},
            status=dg.DagsterRunStatus[status],
        )
        instance.add_run(run)
        found = tick(instance)
        assert bool(found.run_requests) != goes_on
        if goes_on:
            assert f"run {run.run_id} still builds the version before" in found.skip_message
        instance.delete_run(run.run_id)


def test_the_sensor_asks_for_evaluations_of_what_is_complete_and_never_for_a_training(store):
    assert wanted(store) == []
    store.build(catalog()["checkpoints/live@2026.01.01"])
    assert wanted(store) == [LAST, EARLY]
    store.storage.remove("checkpoints/live/2026.01.01")
    assert wanted(store) == [EARLY]
    store.build(catalog()[EARLY])
    assert wanted(store) == []


def test_the_sensor_does_not_ask_for_what_is_being_built(store):
    store.build(catalog()["checkpoints/live@2026.01.01"])
    recipe = catalog()[EARLY]
    start_attempt(
        store.storage,
        store.folder(recipe),
        fingerprint=recipe.fingerprint,
        run_id=None,
        heartbeat_seconds=10.0,
        is_stale=lambda info: False,
    )
    assert wanted(store) == [LAST]


def test_a_rebuilt_dev_checkpoint_is_evaluated_again_and_only_then(store):
    run, scores = catalog()["checkpoints/live@dev"], catalog()["evals/live.step-2@dev"]
    store.build(run)
    before = keys(store)
    assert keys(store) == before
    store.build(scores)
    assert scores.address not in wanted(store)
    store.build(run, force=True)
    after = keys(store)
    assert after[scores.address] != before[scores.address]
    assert after["evals/live@dev"] == before["evals/live@dev"], "equal bytes, the same evaluation"


def test_a_request_names_the_partition_of_build(store, prefix):
    store.build(catalog()["checkpoints/live@2026.01.01"])
    context = dg.build_sensor_context(
        resources={"store": StoreResource()}, repository_def=defs.get_repository_def()
    )
    found = evaluate_checkpoints.evaluate_tick(context).run_requests
    assert [request.partition_key for request in found] == [LAST, EARLY]
    assert len({request.run_key for request in found}) == 2


def test_a_webserver_that_is_not_there_is_named_with_the_way_out():
    fault = WebserverResource(url=NOWHERE).reload()
    assert NOWHERE in fault
    assert "set MARIN_DAGSTER_URL" in fault


def test_renew_adds_a_version_from_the_command_line(prefix, monkeypatch):
    monkeypatch.setenv("MARIN_DAGSTER_URL", NOWHERE)
    try:
        done = CliRunner().invoke(main, ["renew", "rounds", "--version", "2026.12.01"])
        assert done.exit_code == 0, done.output
        assert "deduped/rounds@2026.12.01" in done.output
        assert "note: the code location 'marin' was not loaded again" in done.output
        assert "deduped/rounds@2026.12.01" in catalog()
        again = CliRunner().invoke(main, ["renew", "rounds", "--version", "2026.12.01"])
        assert again.exit_code == 2
        assert "exists already" in again.output
    finally:
        experiments.forget_catalog()
