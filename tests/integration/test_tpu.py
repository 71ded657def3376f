"""The TPU VM launcher and the real clients, on a fake API whose hosts are processes."""

import json
import sys
import time

import pytest

from marin_dagster.launch.base import HostType, Job
from marin_dagster.launch.tpu import TpuLauncher
from marin_dagster.launch.tpu_script import TpuSettings
from marin_dagster.recipe import StageError
from marin_dagster.storage import Storage
from tests.fake_tpu import RUNTIME
from tests.integration.test_kubernetes import SAVE, SPEAK, STACKS, end_of, until
from tests.servers import BUCKET

SLICE = HostType(name="v5e-8", accelerator="v5litepod-8", accelerators=4)


@pytest.fixture
def launcher(zone):
    return launcher_of(zone)


def launcher_of(fake, **changes) -> TpuLauncher:
    settings = {
        "project": "lab",
        "zone": "us-central1-a",
        "runtime_version": RUNTIME,
        "setup": ("export SETUP=done",),
        "poll_seconds": 0.1,
        "patience_seconds": 20.0,
        "grace_seconds": 5.0,
        "cancel_grace_seconds": 2.0,
        "delete_seconds": 20.0,
        "endpoint": fake.url,
        **changes,
    }
    return TpuLauncher(TpuSettings(**settings))


@pytest.fixture
def job(request):
    def make(code: str, **fields) -> Job:
        name = request.node.name.replace("[", "-").replace("]", "")
        given = {"logs": f"gs://{BUCKET}/{name}/logs", "processes": 2, "host": SLICE, **fields}
        command = [sys.executable, "-S", "-c", code]
        return Job(name="checkpoints/toy", command=command, environment={"A": "$(B) 'c'"}, **given)

    return make


def runs(launcher, handle):
    """Waits until both hosts have begun."""
    until(lambda: launcher.state(handle).waits is None)


def test_every_process_knows_its_place_and_nothing_is_left(zone, launcher, job):
    tell = f"import os; assert os.environ['SETUP'] == 'done'; print(os.environ['A']); {SPEAK}"
    handle = launcher.submit(job(tell))
    assert end_of(launcher, handle).succeeded
    launcher.cancel(handle)
    assert zone.left() == []
    words = [launcher.logs(handle, n) for n in range(2)]
    assert words[0] == ["$(B) 'c'", "0 2 127.0.0.1:8476"]
    assert words[1] == ["$(B) 'c'", "1 2 127.0.0.1:8476"]
    launcher.cancel(handle)  # once more


def test_the_process_that_fails_first_is_the_reason(zone, launcher, job):
    die = f"import os, sys; os.environ['MARIN_PROCESS'] == '1' and sys.exit(124); {SAVE}"
    handle = launcher.submit(job(die))
    state = end_of(launcher, handle)
    assert state.reason == "hang"
    assert (state.evidence["process"], state.evidence["exit_code"]) == (1, 124)
    launcher.cancel(handle)
    assert zone.left() == []
    assert launcher.logs(handle, 0)[-1] == "saved"  # the other one could, too


def test_a_set_up_that_fails_is_an_error_with_its_log(zone, job):
    launcher = launcher_of(zone, setup=("echo no such package; exit 3",))
    handle = launcher.submit(job(SPEAK))
    state = end_of(launcher, handle)
    assert (state.reason, state.evidence["exit_code"]) == ("error", 3)
    assert launcher.logs(handle, state.evidence["process"]) == ["no such package"]
    launcher.cancel(handle)


def test_a_preempted_job_could_save_and_is_deleted(zone, launcher, job):
    handle = launcher.submit(job(SAVE))
    runs(launcher, handle)
    zone.preempt()
    state = end_of(launcher, handle)
    assert state.reason == "preempted"
    with zone.changed:
        assert zone.changed.wait_for(lambda: not any(zone.hosts.values()), 60)
    assert [launcher.logs(handle, n)[-1] for n in range(2)] == ["saved", "saved"]
    launcher.cancel(handle)
    assert zone.left() == []


def test_hosts_that_are_gone_without_a_word_are_preempted(zone, launcher, job):
    handle = launcher.submit(job(SAVE))
    runs(launcher, handle)
    zone.kill_hosts()
    assert end_of(launcher, handle).reason == "preempted"
    launcher.cancel(handle)
    assert zone.left() == []


def test_stacks_of_all_processes_come_into_their_logs(zone, launcher, job):
    handle = launcher.submit(job(STACKS))
    runs(launcher, handle)
    launcher.dump_stacks(handle)
    for process in range(2):
        assert "most recent call" in "".join(launcher.logs(handle, process))
    assert not launcher.state(handle).done
    started = time.monotonic()
    launcher.cancel(handle)
    assert time.monotonic() - started < 15
    assert zone.left() == []
    state = launcher_of(zone).state(handle)
    assert state.done
    assert not state.succeeded


def test_a_lost_answer_asks_for_nothing_twice(zone, launcher, job):
    lost = []

    def lose(method, where):
        if method == "POST" and not lost:
            lost.append(where)
            return "lose"
        return None

    zone.room, zone.rule = False, lose
    handle = launcher.submit(job(SPEAK))
    assert launcher_of(zone).submit(job(SPEAK)) == handle  # its submitter died, and began anew
    assert (zone.made, len(lost)) == (1, 1)
    assert "WAITING_FOR_RESOURCES" in launcher.state(handle).waits
    (resource,) = zone.resources.values()
    resource["tpu"]["nodeSpec"][0]["node"]["labels"] = {}
    with pytest.raises(StageError, match="is another's"):
        launcher.submit(job(SPEAK))
    launcher.cancel(handle)
    assert zone.left() == []


def test_an_api_that_is_away_ends_no_job(zone, launcher, job):
    handle = launcher.submit(job(SAVE))
    runs(launcher, handle)
    zone.stop()
    state = until(lambda: (now := launcher.state(handle)).waits and now)
    assert not state.done
    assert "does not answer" in state.waits
    zone.start()
    zone.rule = lambda method, path, asked=[]: asked.append(path) or 503 * (len(asked) % 2) or None
    launcher.cancel(handle)
    assert zone.left() == []


def test_a_bucket_that_is_gone_does_not_keep_a_resource(zone, launcher, job):
    handle = launcher.submit(job(SAVE))
    runs(launcher, handle)
    gone = json.dumps({**json.loads(handle), "logs": "gs://nobodys/logs"})
    with pytest.raises(OSError, match="nobodys"):
        launcher.cancel(gone)
    assert zone.left() == []


def test_a_resource_that_fails_is_an_error_in_the_clouds_words(zone, launcher, job):
    zone.failure = "You have exhausted your quota for TPUV5s"
    handle = launcher.submit(job(SPEAK))
    state = launcher.state(handle)
    assert (state.done, state.reason) == (True, "error")
    assert "quota" in state.evidence["cloud"]
    launcher.cancel(handle)
    assert zone.left() == []


def test_what_is_missing_is_found_before_anything_starts(zone, launcher, job):
    assert launcher.preflight(job(SPEAK)) == []
    cases = {
        "no zone": launcher_of(zone, zone="mars-1-a").preflight(job(SPEAK)),
        "runtime_version": launcher_of(zone, runtime_version="x").preflight(job(SPEAK)),
        "v9": launcher.preflight(job(SPEAK, host=HostType(name="v9", accelerator="v9"))),
        "has 2 hosts": launcher.preflight(job(SPEAK, processes=3)),
        "out of reach": launcher.preflight(job(SPEAK, logs="/tmp/logs")),
        "cannot be read": launcher.preflight(job(SPEAK, logs="gs://nobodys/logs")),
    }
    zone.stop()
    cases["does not answer"] = launcher.preflight(job(SPEAK))
    for word, found in cases.items():
        assert len(found) == 1, word
        assert word in found[0]
    assert zone.made == 0


def test_a_host_that_starts_again_does_not_start_the_job_again(zone, launcher, job):
    wanted = job(SPEAK)
    Storage(wanted.logs).write("start.0", b"")  # by this host, before it was started again
    state = end_of(launcher, handle := launcher.submit(wanted))
    assert state.reason == "preempted"
    assert state.evidence["words"] == "the host was started again"
    launcher.cancel(handle)
    assert json.loads(handle)["name"] not in zone.resources
