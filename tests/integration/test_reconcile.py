"""What died without a word is told truthfully, and makes room for the next."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import dagster as dg
import pytest
from click.testing import CliRunner

from jobs.reconcile import reconcile
from marin_dagster.attempt import attempt_path
from marin_dagster.cli import main
from marin_dagster.experiments import catalog
from marin_dagster.process import descendants, process_exists
from marin_dagster.store import Store
from resources.workers import REASON_TAG, WORKER_TAG, Worker
from tests.dagster_server import DagsterServer, wait_for
from tests.scripted import FOLDER, Scripts

INTERVALS_SECONDS = 2 * 15.0 + 60.0  # two looks of the sensor, and a daemon on a busy machine
ONE, TWO, HERE = "checkpoints/one@dev", "checkpoints/two@dev", "raw/many-00@dev"
FAILURE = dg.DagsterRunStatus.FAILURE


@pytest.fixture
def served(server) -> Scripts:
    for path in server.scripts.folder.iterdir():
        path.unlink()
    store = Store(server.prefix)
    for address in (ONE, TWO, HERE):
        store.storage.remove(store.folder(catalog()[address]))
    return server.scripts


def start_build(folder: Path, environment: dict[str, str], address: str) -> subprocess.Popen:
    return subprocess.Popen(
        [str(Path(sys.executable).with_name("marin")), "build", address, "--run"],
        cwd=folder,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def evidence(instance: dg.DagsterInstance, run_id: str) -> dict[str, str]:
    """What the event says that explains the end of a run."""
    for entry in instance.all_logs(run_id, of_type=dg.DagsterEventType.ENGINE_EVENT):
        metadata = entry.dagster_event.engine_event_data.metadata
        if "reason" in metadata:
            return {name: str(item.value) for name, item in metadata.items()}
    raise AssertionError(f"nothing explains run {run_id}")


def test_a_killed_run_worker_fails_its_run_and_the_retry_takes_over(server, served):
    served.write(ONE, "first children wait")
    first = server.materialize("checkpoints", "one@dev")
    wait_for(lambda: len(served.beats(ONE)) == 2, 300)
    with server.instance() as instance:
        worker = Worker.of(instance.get_run_by_id(first)).process.pid
        tree = descendants(worker)
        assert len(tree) >= 4  # keeper, worker, two grandchildren
        os.kill(worker, signal.SIGKILL)
        wait_for(lambda: not any(process_exists(pid) for pid in tree), 15, "its children end")
        wait_for(
            lambda: (
                REASON_TAG in instance.get_run_by_id(first).tags
                and instance.get_run_by_id(first).status == FAILURE
            ),
            INTERVALS_SECONDS,
        )
        assert instance.get_run_by_id(first).tags[REASON_TAG] == "killed"
        found = evidence(instance, first)
        assert (found["pid"], found["attempt"]) == (str(worker), "1")

        def second() -> dg.DagsterRun | None:
            retried = [run for run in instance.get_runs() if run.parent_run_id == first]
            return retried[0] if retried and retried[0].is_finished else None

        again = wait_for(second, 300, "the retry")
        assert again.is_success
        assert not again.tags.get(REASON_TAG), "it does not inherit the reason"
    assert [info.reason for info in Store(server.prefix).attempts(catalog()[ONE])] == [
        "killed",
        None,
    ]


def test_a_killed_build_in_the_foreground_makes_room_for_the_next_run(server, served):
    served.write(ONE, "children wait")
    build = start_build(server.folder, server.environment, ONE)
    wait_for(lambda: len(served.beats(ONE)) == 2, 300)
    queued = server.materialize("checkpoints", "two@dev")
    with server.instance() as instance:
        build.kill()
        build.wait()
        dead = [run for run in instance.get_runs(limit=3) if run.run_id != queued]
        assert len(dead) == 2  # of `build`, and of its step
        for run in dead:
            wait_for(
                lambda run_id=run.run_id: instance.get_run_by_id(run_id).status == FAILURE,
                INTERVALS_SECONDS,
            )
            assert instance.get_run_by_id(run.run_id).tags[REASON_TAG] == "killed"
            assert evidence(instance, run.run_id)["pid"] == str(build.pid)
        wait_for(lambda: instance.get_run_by_id(queued).is_success, 300)


def test_the_command_line_corrects_what_was_killed_where_no_daemon_runs(
    tmp_path, scripts, monkeypatch
):
    server = DagsterServer(tmp_path)  # only its settings: it is not started
    scripts.write(HERE, "wait")
    build = start_build(tmp_path, server.environment, HERE)
    wait_for(lambda: scripts.starts(HERE), 300)
    build.kill()
    build.wait()
    for name in ("DAGSTER_HOME", "MARIN_PREFIX"):
        monkeypatch.setenv(name, server.environment[name])
    with server.instance() as instance:
        assert {run.status.value for run in instance.get_runs()} == {"STARTED"}
        told = CliRunner().invoke(main, ["reconcile"]).output
        assert told.count("ended without a word") == 2
        assert {run.tags[REASON_TAG] for run in instance.get_runs(limit=9)} == {"killed"}
        assert {run.status for run in instance.get_runs()} == {FAILURE}
        assert "every run is what it says" in CliRunner().invoke(main, ["reconcile"]).output


def test_a_silent_worker_on_another_host_is_unknown_until_another_takes_over(
    tmp_path, scripts, monkeypatch
):
    server = DagsterServer(tmp_path)
    store = Store(server.prefix, stale_seconds=1.0)
    recipe = catalog()[HERE]
    scripts.write(HERE, "wait")
    build = start_build(tmp_path, server.environment, HERE)
    wait_for(lambda: scripts.starts(HERE), 300)
    os.kill(build.pid, signal.SIGKILL)
    build.wait()
    with server.instance() as instance:
        run = next(run for run in instance.get_runs() if "marin/artifact" in run.tags)
        for found in instance.get_runs():
            worker = json.loads(found.tags[WORKER_TAG])
            worker["process"]["host"] = "elsewhere"
            instance.add_run_tags(found.run_id, {WORKER_TAG: json.dumps(worker)})
        path = attempt_path(store.folder(recipe), 1)
        info = json.loads(store.storage.read(path))
        store.storage.write(path, json.dumps({**info, "host": "elsewhere"}).encode())
        wait_for(lambda: store.is_silent(store.last_attempt(recipe)), 300)
        (finding,) = reconcile(instance, store)
        assert "is unknown since" in finding.text
        assert finding.reason is None
        assert instance.get_run_by_id(run.run_id).status.value == "STARTED"

        ended = {**info, "state": "failed", "reason": "killed", "ended": time.time() - 999}
        store.storage.write(path, json.dumps({**ended, "host": "elsewhere"}).encode())
        (finding,) = reconcile(instance, store)
        assert finding.reason == "killed"
        assert instance.get_run_by_id(run.run_id).status == FAILURE


def test_status_tells_when_a_silent_attempt_was_last_seen(prefix):
    code = (
        "import sys; from tests.scripted import *; from marin_dagster.store import Store;"
        "from marin_dagster.experiments import catalog;"
        f"Store({prefix!r}, heartbeat_seconds=0.2, stale_seconds=60).build(catalog()['{HERE}'])"
    )
    folder = Path(prefix).parent / "scripts"
    folder.mkdir()
    Scripts(folder).write(HERE, "wait")
    environment = {**os.environ, FOLDER: str(folder)}
    build = subprocess.Popen([sys.executable, "-W", "ignore", "-c", code], env=environment)
    store = Store(prefix, stale_seconds=2.0)

    def state() -> str:
        from marin_dagster.show import artifact_state

        found, notes, _ = artifact_state(store, catalog()[HERE])
        assert found == "missing" or "last seen 20" in notes
        return found

    wait_for(lambda: state() == "running", 300)
    os.kill(build.pid, signal.SIGSTOP)
    wait_for(lambda: state() == "unknown", 300)
    os.kill(build.pid, signal.SIGCONT)
    wait_for(lambda: state() == "running", 300)
    build.kill()
    build.wait()
