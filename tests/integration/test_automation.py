"""What runs by itself, in a real `dagster dev` with its daemon: schedule, backfill, sensor."""

import datetime
import subprocess

import pytest

from marin_dagster.experiments import catalog
from marin_dagster.recipe import Recipe, walk
from marin_dagster.store import Store
from tests.dagster_server import DagsterServer, wait_for
from tests.integration import lab

pytestmark = pytest.mark.slow
SECONDS = 300  # for what the daemon does in its own time
FROM_CLI = ("raw/toy@2026.01.01", "raw/toy@2026.02.03")
SELECTOR = {"repositoryName": "__repository__", "repositoryLocationName": "marin"}
START_SCHEDULE = """
mutation ($selector: ScheduleSelector!) { startSchedule(scheduleSelector: $selector) {
  __typename ... on ScheduleStateResult { scheduleState { id } } ... on PythonError { message } } }
"""
STOP_SCHEDULE = """
mutation ($id: String) { stopRunningSchedule(id: $id) {
  __typename ... on PythonError { message } } }
"""
START_SENSOR = """
mutation ($selector: SensorSelector!) { startSensor(sensorSelector: $selector) {
  __typename ... on PythonError { message } } }
"""
BACKFILL = """
mutation ($params: LaunchBackfillParams!) { launchPartitionBackfill(backfillParams: $params) {
  __typename ... on LaunchBackfillSuccess { backfillId } ... on PythonError { message } } }
"""
BACKFILL_STATUS = """
query ($id: String!) { partitionBackfillOrError(backfillId: $id) {
  ... on PartitionBackfill { status numPartitions } } }
"""
PARTITIONS = """{ assetNodeOrError(assetKey: {path: ["build"]}) {
  ... on AssetNode { partitionKeys } } }"""
STATES = """{ workspaceOrError { ... on Workspace { locationEntries { locationOrLoadError {
  ... on RepositoryLocation { repositories {
    schedules { name scheduleState { status } } sensors { name sensorState { status } }
  } } } } } } }"""


@pytest.fixture(scope="module")
def dev(tmp_path_factory):
    folder = tmp_path_factory.mktemp("automation")
    with DagsterServer(
        folder, concurrent_runs=8, pool_limit=2, LAB_GATE=str(folder / "gate")
    ) as started:
        yield started


@pytest.fixture(scope="module")
def started(dev) -> dict:
    """Turns everything on at once, and says what it found before."""
    entry = dev.ask(STATES)["workspaceOrError"]["locationEntries"][0]["locationOrLoadError"]
    repository = entry["repositories"][0]
    before = {item["name"]: item["scheduleState"]["status"] for item in repository["schedules"]}
    before |= {item["name"]: item["sensorState"]["status"] for item in repository["sensors"]}
    keys = partitions(dev)
    selected = {**SELECTOR, "scheduleName": "renew_rounds"}
    answer = dev.ask(START_SCHEDULE, selector=selected)["startSchedule"]
    assert answer["__typename"] == "ScheduleStateResult", answer
    schedule = answer["scheduleState"]["id"]
    selected = {**SELECTOR, "sensorName": "evaluate_checkpoints"}
    answer = dev.ask(START_SENSOR, selector=selected)["startSensor"]
    assert answer["__typename"] == "Sensor", answer
    params = {
        "assetSelection": [{"path": ["build"]}],
        "partitionNames": [f"deduped/rounds@{version}" for version in (lab.FIRST, lab.SECOND)],
    }
    answer = dev.ask(BACKFILL, params=params)["launchPartitionBackfill"]
    assert answer["__typename"] == "LaunchBackfillSuccess", answer
    words = ["job", "backfill", "-w", "workspace.yaml", "-j", "build_targets", "--noprompt"]
    from_cli = dev.command("dagster", *words, "--partitions", ",".join(FROM_CLI))
    training = dev.command("marin", "build", f"checkpoints/live@{lab.FIRST}", "--run")
    return {
        "states": before,
        "partitions": keys,
        "schedule": schedule,
        "backfill": answer["backfillId"],
        "from_cli": from_cli,
        "training": training,
    }


def partitions(dev) -> list[str]:
    return dev.ask(PARTITIONS)["assetNodeOrError"]["partitionKeys"]


def complete(dev, recipe: Recipe):
    return Store(dev.prefix).record(recipe)


def test_schedules_and_sensors_are_off_until_turned_on(started):
    assert started["states"]["renew_rounds"] == "STOPPED"
    assert started["states"]["evaluate_checkpoints"] == "STOPPED"


def test_a_tick_adds_a_version_shows_it_and_builds_it_without_an_edit(dev, started):
    today = datetime.datetime.now(datetime.UTC).strftime("%Y.%m.%d")
    (target,) = lab.rounds(today)
    wait_for(lambda: complete(dev, target), SECONDS, f"{target.address} built by the schedule")
    assert target.address not in started["partitions"]
    assert target.address in partitions(dev)
    answer = dev.ask(STOP_SCHEDULE, id=started["schedule"])["stopRunningSchedule"]
    assert answer["__typename"] == "ScheduleStateResult", answer


def test_a_snapshot_is_evaluated_while_its_training_goes_on(dev, started):
    training: subprocess.Popen = started["training"]
    last, early = lab.live(lab.FIRST)
    record = wait_for(lambda: complete(dev, early), SECONDS, "the evaluation of the snapshot")
    assert training.poll() is None
    assert complete(dev, last.checkpoint) is None
    assert complete(dev, last) is None
    assert record.inputs[0].digest == complete(dev, early.checkpoint).digest
    (dev.folder / "gate").touch()
    said, _ = training.communicate(timeout=300)
    assert training.returncode == 0, said
    wait_for(lambda: complete(dev, last), SECONDS, "the evaluation of the checkpoint")
    assert complete(dev, early).digest == record.digest


def test_a_backfill_over_versions_builds_each_and_what_they_share_once(dev, started):
    def status():
        found = dev.ask(BACKFILL_STATUS, id=started["backfill"])["partitionBackfillOrError"]
        return found["status"] if found["status"] not in ("REQUESTED", "IN_PROGRESS") else None

    assert wait_for(status, SECONDS, "the end of the backfill") == "COMPLETED_SUCCESS"
    store = Store(dev.prefix)
    both = [lab.rounds(version)[0] for version in (lab.FIRST, lab.SECOND)]
    shared = walk(both)["text/shared@2026.01.01"]
    assert len({store.record(target).run_id for target in both}) == len(both)
    digests = {
        item.digest
        for target in both
        for item in store.record(target).inputs
        if item.address == shared.address
    }
    assert digests == {store.record(shared).digest}
    assert [attempt.state for attempt in store.attempts(shared)] == ["succeeded"]


def test_a_backfill_from_the_command_line_builds_each_version(dev, started):
    said, _ = started["from_cli"].communicate(timeout=300)
    assert started["from_cli"].returncode == 0, said
    for target in FROM_CLI:
        wait_for(
            lambda target=target: complete(dev, catalog()[target]), SECONDS, f"{target} {said}"
        )


def test_every_way_to_run_read_what_the_recipe_says(dev):
    store = Store(dev.prefix)
    found = {address: store.record(recipe) for address, recipe in catalog().items()}
    built = {address: record for address, record in found.items() if record is not None}
    for stage in ("text", "deduped", "snapshots", "evals"):
        assert any(address.startswith(f"{stage}/") for address in built), stage
    for address, record in built.items():
        wanted = [item.address for item in catalog()[address].inputs]
        assert [item.address for item in record.inputs] == wanted
