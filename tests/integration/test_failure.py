"""Every way to fail has a reason, evidence and its own number of new tries."""

import os
import shutil
import signal
import threading
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import dagster as dg
import pytest

from marin_dagster.definitions import defs
from marin_dagster.experiments import catalog
from marin_dagster.failure import RETRIES, Retry
from marin_dagster.memory import available_memory
from marin_dagster.process import descendants, send
from marin_dagster.store import Store
from resources import RESOURCES, StoreResource
from resources.workers import REASON_TAG
from tests.dagster_server import wait_for

WORKER, HERE = "checkpoints/one@dev", "raw/many-00@dev"


@pytest.fixture
def instance():
    with dg.DagsterInstance.ephemeral() as found:
        yield found


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    """New tries come without a pause."""
    for reason, retry in RETRIES.items():
        monkeypatch.setitem(RETRIES, reason, replace(retry, delay_seconds=0.0))


def run(instance, address: str, **resources) -> dg.ExecuteInProcessResult:
    stage, _, key = address.partition("/")
    return defs.resolve_implicit_global_asset_job_def().execute_in_process(
        instance=instance,
        asset_selection=[dg.AssetKey(stage)],
        partition_key=key,
        raise_on_error=False,
        resources=resources or None,
    )


def failure(instance, result: dg.ExecuteInProcessResult) -> dict:
    """The metadata of a run that failed; its tag says the same."""
    assert not result.success
    (event,) = result.get_step_failure_events()
    metadata = event.step_failure_data.user_failure_data.metadata
    found = {name: item.value for name, item in metadata.items()}
    assert instance.get_run_by_id(result.run_id).tags[REASON_TAG] == found["reason"]
    return found


@contextmanager
def meanwhile(work):
    """Does something beside the block; what it raises, the block raises at its end."""
    failed = []

    def guarded():
        try:
            work()
        except BaseException as error:
            failed.append(error)
            raise

    thread = threading.Thread(target=guarded)
    thread.start()
    yield
    thread.join()
    if failed:
        raise failed[0]


@pytest.mark.parametrize(
    ("address", "script", "reason", "evidence", "starts"),
    [
        (WORKER, "exit:3", "error", {"exit_code": 3}, 1),
        (WORKER, "exit:0", "error", {"exit_code": 0}, 1),
        (WORKER, "signal:9", "killed", {"signal": "SIGKILL", "exit_code": 137}, 2),
        (WORKER, "signal:11", "killed", {"signal": "SIGSEGV", "exit_code": 139}, 2),
        (WORKER, "memory", "oom", {"exit_code": 1, "exception": "MemoryError"}, 1),
        (WORKER, "raise:diverged", "diverged", {"exit_code": 1}, 1),
        (HERE, "raise:bad_input", "bad_input", {}, 1),
    ],
)
def test_a_failed_run_says_why_and_shows_what_that_rests_on(
    instance, prefix, scripts, address, script, reason, evidence, starts
):
    scripts.write(address, script)
    found = failure(instance, run(instance, address))
    store, recipe = Store(prefix), catalog()[address]
    assert found["reason"] == reason
    assert found["evidence"] == evidence
    assert scripts.starts(address) == found["attempt"] == starts
    assert found["log_file"] == store.log_url(recipe, starts)
    assert len(found["log"].splitlines()) <= 52  # fifty lines and two fences
    assert "last words" in found["log"] or not script.startswith("exit")
    assert store.record(recipe) is None
    assert [info.reason for info in store.attempts(recipe)] == [reason] * starts


@pytest.mark.parametrize("script", ["first exit:75", "first exit:143", "first signal:15"])
def test_a_preempted_worker_is_replaced_by_another_attempt(instance, prefix, scripts, script):
    scripts.write(WORKER, script)
    result = run(instance, WORKER)
    assert result.success
    assert REASON_TAG not in instance.get_run_by_id(result.run_id).tags
    first, second = Store(prefix).attempts(catalog()[WORKER])
    assert (first.reason, second.state) == ("preempted", "succeeded")
    assert first.evidence["exit_code"] == (75 if "75" in script else 143)
    assert Store(prefix).record(catalog()[WORKER]).attempt == second.number == 2


def test_a_worker_that_is_preempted_for_ever_ends_the_run(instance, prefix, scripts, monkeypatch):
    monkeypatch.setitem(RETRIES, "preempted", Retry(times=2))
    scripts.write(WORKER, "exit:75")
    assert failure(instance, run(instance, WORKER))["reason"] == "preempted"
    assert scripts.starts(WORKER) == 3


def test_out_of_memory_in_the_runs_own_process_is_told(instance, prefix, scripts, monkeypatch):
    monkeypatch.setattr("tests.scripted.play", lambda ctx: bytearray(2**60))
    found = failure(instance, run(instance, HERE))
    assert (found["reason"], found["evidence"]) == ("oom", {"exception": "MemoryError"})


def test_a_worker_over_its_time_is_ended(instance, prefix, scripts, monkeypatch):
    monkeypatch.setenv("MARIN_TIMEOUT_SECONDS", "3")
    scripts.write(WORKER, "children wait")
    found = failure(instance, run(instance, WORKER))
    assert found["reason"] == "timeout"
    assert found["evidence"]["limit_seconds"] == 3.0
    assert scripts.starts(WORKER) == 1
    assert not workers()


def test_a_silent_worker_shows_its_stacks_and_is_tried_once_more(
    instance, prefix, scripts, monkeypatch
):
    monkeypatch.setenv("MARIN_HANG_SECONDS", "4")
    scripts.write(WORKER, "say:1 silent")
    found = failure(instance, run(instance, WORKER))
    assert found["reason"] == "hang"
    assert found["evidence"]["silent_seconds"] >= 4.0
    assert "in play" in found["log"], "the stack names the function that hangs"
    assert scripts.starts(WORKER) == 2


def test_a_model_that_does_not_fit_is_refused_before_anything_starts(
    instance, prefix, scripts, monkeypatch
):
    assert available_memory() is not None
    recipe = catalog()[WORKER]
    monkeypatch.setattr(type(recipe), "memory", lambda self: 2**50)
    found = failure(instance, run(instance, WORKER))
    assert found["reason"] == "bad_input"
    assert found["evidence"]["needed_bytes"] == 2**50
    assert 0 < found["evidence"]["available_bytes"] < 2**50
    assert scripts.starts(WORKER) == 0


def test_the_memory_of_a_pretraining_is_sixteen_bytes_per_parameter():
    recipe = catalog()["checkpoints/quickstart@dev"]
    count = recipe.model.parameters(recipe.tokenizer.vocab_size).total
    assert recipe.memory() == 16 * count


def test_a_job_that_vanishes_is_noticed_and_is_not_a_success(instance, prefix, scripts):
    scripts.write(WORKER, "wait")

    def vanish():
        for _ in range(2):  # it is tried once more
            (keeper,) = wait_for(lambda: [pid for pid in keepers() if descendants(pid)], 300)
            send([keeper], signal.SIGKILL)
            wait_for(lambda gone=keeper: gone not in keepers(), 300)

    with meanwhile(vanish):
        result = run(instance, WORKER)
    found = failure(instance, result)
    assert (found["reason"], found["evidence"]["signal"]) == ("killed", "SIGKILL")
    assert not workers()


def test_messages_come_once_each_when_their_way_is_cut_for_a_while(instance, prefix, scripts):
    scripts.write(WORKER, "say:60")

    def cut():
        (messages,) = wait_for(lambda: list(Path(prefix).rglob("*.messages")), 300)
        aside = messages.with_suffix(".aside")
        wait_for(lambda: b"message 5" in messages.read_bytes(), 300)
        with paused_workers():
            shutil.move(messages, aside)
            messages.mkdir()  # nobody can write or read a folder
        threading.Event().wait(1.0)  # several messages and polls
        with paused_workers():
            messages.rmdir()
            shutil.move(aside, messages)
        wait_for(lambda: b"message 40" in messages.read_bytes(), 300)
        with paused_workers():
            whole = messages.read_bytes()
            for part in (whole[: len(whole) // 2], b"", whole[40:]):
                messages.write_bytes(part)
                threading.Event().wait(0.5)  # two polls
            messages.write_bytes(whole)

    with meanwhile(cut):
        result = run(instance, WORKER)
    assert result.success
    log = Path(Store(prefix).log_url(catalog()[WORKER], 1)).read_text()
    said = [int(line.split()[-1]) for line in log.splitlines() if " message " in line]
    assert said == list(range(60))


def test_a_retry_builds_only_what_is_missing(instance, prefix, scripts):
    chain = [f"{stage}/chain@dev" for stage in ("raw", "text", "filtered", "deduped")]
    scripts.write(chain[2], "first raise:error")
    assert not run(instance, "build/deduped/chain@dev").success
    assert run(instance, "build/deduped/chain@dev").success
    assert [scripts.starts(address) for address in chain] == [1, 1, 2, 1]
    again = run(instance, "build/deduped/chain@dev")
    assert [scripts.starts(address) for address in chain] == [1, 1, 2, 1]
    assert again.asset_materializations_for_node("build")[0].metadata["built"].value == 0


def test_a_run_that_fails_after_its_artifact_is_complete_builds_nothing_again(
    instance, prefix, scripts
):
    class Failing(StoreResource):
        def teardown_after_execution(self, context) -> None:
            raise RuntimeError("as asked")

    job = dg.Definitions(
        assets=defs.assets, resources={**RESOURCES, "store": Failing()}
    ).resolve_implicit_global_asset_job_def()
    asked = {
        "instance": instance,
        "asset_selection": [dg.AssetKey("raw")],
        "partition_key": "many-00@dev",
        "raise_on_error": False,
    }
    job.execute_in_process(**asked)
    again = run(instance, HERE)
    metadata = again.asset_materializations_for_node("raw")[0].metadata
    assert metadata["reused"].value is True
    assert scripts.starts(HERE) == 1


@contextmanager
def paused_workers():
    """Nothing is written while a test takes the messages apart."""
    found = workers()
    send(found, signal.SIGSTOP)
    yield
    send(found, signal.SIGCONT)


def keepers() -> list[int]:
    return [pid for pid in descendants(os.getpid()) if b"launch.keeper" in _command(pid)]


def workers() -> list[int]:
    """What launchers have started and what came of it."""
    own = descendants(os.getpid())
    marks = (b"launch.keeper", b"launch.worker", b"setsid")
    return [pid for pid in own if any(mark in _command(pid) for mark in marks)]


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
