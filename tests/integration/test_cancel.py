"""Whoever cancels gets everything back within 15 seconds: processes, address, pool, queue."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.execution.backfill import BulkActionStatus

from assets.stage import ARTIFACT_TAG, tag_value
from marin_dagster.experiments import catalog
from marin_dagster.process import descendants, process_exists
from marin_dagster.store import Store
from resources.workers import REASON_TAG
from tests.dagster_server import DagsterServer, wait_for
from tests.scripted import FOLDER, MANY, Scripts

CANCEL_SECONDS = 15.0
ONE, TWO = "checkpoints/one@dev", "checkpoints/two@dev"
CANCELED = dg.DagsterRunStatus.CANCELED


@pytest.fixture
def scripts(server) -> Scripts:
    """The server's scripts, with artifacts and notes of other tests removed."""
    for path in server.scripts.folder.iterdir():
        path.unlink()
    for address in (ONE, TWO):
        Store(server.prefix).storage.remove(Store(server.prefix).folder(catalog()[address]))
    return server.scripts


def assert_free(server: DagsterServer, address: str) -> None:
    """Nobody holds the address, and its last attempt says that it was cancelled."""
    last = Store(server.prefix).last_attempt(catalog()[address])
    assert (last.state, last.reason) == ("failed", "user_cancel")


def assert_silent(scripts: Scripts, address: str) -> None:
    """The grandchildren, which ignore signals and have left the session, are gone."""
    beats = scripts.beats(address)
    assert len(beats) == 2
    wait_for(lambda: time.time() - max(scripts.beats(address)) > 1.0, CANCEL_SECONDS)


def test_terminating_a_run_ends_all_that_it_started_and_the_next_one_begins(server, scripts):
    scripts.write(ONE, "children deaf wait")
    first = server.materialize("checkpoints", "one@dev")
    wait_for(lambda: len(scripts.beats(ONE)) == 2, 300, "the first run is at work")
    second = server.materialize("checkpoints", "two@dev")
    with server.instance() as instance:
        assert scripts.starts(TWO) == 0, "the pool admits one"
        asked = time.monotonic()
        server.terminate(first)
        wait_for(lambda: instance.get_run_by_id(first).status == CANCELED, CANCEL_SECONDS)
        assert time.monotonic() - asked < CANCEL_SECONDS
        assert_silent(scripts, ONE)
        assert_free(server, ONE)
        assert instance.get_run_by_id(first).tags[REASON_TAG] == "user_cancel"
        wait_for(lambda: instance.get_run_by_id(second).is_success, 300)
        assert not instance.event_log_storage.get_concurrency_run_ids()
    assert scripts.starts(ONE) == 1, "what a person cancels is not tried again"


def test_terminating_a_build_ends_the_run_of_its_step_too(server, scripts):
    scripts.write(ONE, "children wait")
    parent = server.materialize("build", ONE)
    wait_for(lambda: len(scripts.beats(ONE)) == 2, 300)
    server.terminate(parent)
    with server.instance() as instance:
        wait_for(lambda: instance.get_run_by_id(parent).status == CANCELED, CANCEL_SECONDS)
        of_step = dg.RunsFilter(tags={ARTIFACT_TAG: tag_value(ONE)})
        step = next(run for run in instance.get_runs(of_step) if run.run_id != parent)
        assert step.status == CANCELED
        assert step.tags[REASON_TAG] == "user_cancel"
    assert_silent(scripts, ONE)
    assert_free(server, ONE)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_a_build_in_the_foreground_ends_everything(server, scripts, number):
    scripts.write(ONE, "children deaf wait")
    build = subprocess.Popen(
        [str(Path(sys.executable).with_name("marin")), "build", ONE, "--run"],
        cwd=server.folder,
        env=server.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    wait_for(lambda: len(scripts.beats(ONE)) == 2, 300)
    tree = descendants(build.pid)
    assert len(tree) >= 4  # keeper, worker, two grandchildren
    os.kill(build.pid, number)
    wait_for(lambda: not any(process_exists(pid) for pid in tree), CANCEL_SECONDS)
    said, _ = build.communicate(timeout=300)
    assert build.returncode == 1
    assert "Traceback" not in said
    last = Store(server.prefix).last_attempt(catalog()[ONE])
    assert last.reason == ("user_cancel" if number == signal.SIGINT else "preempted")
    with server.instance() as instance:
        found = instance.get_runs(limit=2)
        assert {run.tags[REASON_TAG] for run in found} == {last.reason}
        assert all(run.is_finished for run in found)
        assert not instance.event_log_storage.get_concurrency_run_ids()


@pytest.mark.slow
def test_a_cancelled_backfill_starts_nothing_more_even_if_the_daemon_starts_again(tmp_path):
    (tmp_path / "scripts").mkdir()
    scripts = Scripts(tmp_path / "scripts")
    addresses = [f"raw/{name}@dev" for name in MANY]
    for address in addresses:
        scripts.write(address, "wait")
    with DagsterServer(tmp_path, concurrent_runs=2, **{FOLDER: str(scripts.folder)}) as server:
        backfill = server.backfill("raw", [f"{name}@dev" for name in MANY])

        def begun() -> list[str]:
            return [address for address in addresses if scripts.starts(address)]

        wait_for(lambda: len(begun()) == 2, 300, "two have begun")
        scripts.go(begun()[0])
        wait_for(lambda: len(begun()) == 3, 300, "three have begun")
        server.cancel_backfill(backfill)
        server.stop(signal.SIGTERM)  # before the daemon can act on it
        server.start()
        with server.instance() as instance:

            def ended() -> bool:
                return instance.get_backfill(backfill).status == BulkActionStatus.CANCELED

            wait_for(ended, 300, "the backfill is over")
            runs = instance.get_runs()
            assert all(run.is_finished for run in runs), [run.status for run in runs]
        assert len(begun()) == 3
