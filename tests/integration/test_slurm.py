"""The launcher for Slurm against real daemons: how jobs run, how they end, what is left of them."""

import json
import os
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import fsspec
import pytest

from marin_dagster.launch.base import HostType, Job, JobState
from marin_dagster.launch.slurm import SlurmLauncher
from marin_dagster.launch.slurm_script import SlurmSettings
from marin_dagster.recipe import StageError
from tests.slurm_cluster import (
    NODES,
    PACKAGES,
    SlurmCluster,
    missing_daemons,
    slurm_cluster,
    wait_until,
)

needs_slurm = pytest.mark.skipif(
    bool(missing_daemons()), reason=f"no {missing_daemons()}: apt-get install {PACKAGES}"
)
pytestmark = needs_slurm
GRACE_SECONDS = 3.0
CANCEL_SECONDS = 15.0  # what a job may take to be gone
FOREVER = "echo up; sleep 600"


class Lab:
    """A launcher with a folder of its own; `start` submits shell commands."""

    def __init__(self, cluster: SlurmCluster, root: Path):
        self.cluster, self.root = cluster, root
        self.settings = SlurmSettings(
            folder=str(root / "slurm"),
            grace_seconds=GRACE_SECONDS,
            poll_seconds=0.2,
            patience_seconds=30.0,
        )
        self.launcher = SlurmLauncher(self.settings)

    def job(self, command: str, processes: int = 2, **fields) -> Job:
        values = {"name": "job", "environment": {}, "logs": str(self.root / f"{time.time_ns()}")}
        return Job(**{**values, "command": ["bash", "-c", command], **fields}, processes=processes)

    def start(self, command: str, processes: int = 2, **fields) -> str:
        return self.launcher.submit(self.job(command, processes, **fields))

    def log(self, handle: str, process: int) -> str:
        return "\n".join(self.launcher.logs(handle, process))

    def run_until(self, handle: str, text: str, processes: int = 2) -> None:
        """Waits until all processes have printed something."""
        places = range(processes)
        wait_until(lambda: all(text in self.log(handle, place) for place in places), text)

    def end(self, handle: str) -> JobState:
        wait_until(lambda: self.launcher.state(handle).done, "the end of a job")
        return self.launcher.state(handle)


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmCluster]:
    with slurm_cluster() as found, pytest.MonkeyPatch.context() as patch:
        for name, value in found.environment.items():
            patch.setenv(name, value)
        yield found


@pytest.fixture(scope="module")
def overdue(cluster, tmp_path_factory) -> Iterator[tuple[Lab, str]]:
    """A job past its limit, which the controller looks for twice in a minute."""
    lab = Lab(cluster, tmp_path_factory.mktemp("overdue"))
    lab.settings = replace(lab.settings, time_limit_minutes=1)
    lab.launcher = SlurmLauncher(lab.settings)
    handle = lab.start(FOREVER, processes=1)
    lab.run_until(handle, "up", processes=1)
    cluster.run("scontrol", "update", f"jobid={json.loads(handle)['job']}", "timelimit=0")
    yield lab, handle
    lab.launcher.cancel(handle)


@pytest.fixture
def lab(cluster, tmp_path) -> Iterator[Lab]:
    yield Lab(cluster, tmp_path)
    for job in cluster.jobs():
        name = cluster.run("squeue", "-h", "-j", job, "-o", "%j").strip()
        if (tmp_path / "slurm" / name).exists():
            cluster.run("scancel", "--signal=KILL", "--full", job)


def test_every_process_knows_its_place_and_has_its_log(lab, overdue):
    told = "echo $MARIN_PROCESS of $MARIN_PROCESSES at $MARIN_COORDINATOR; echo $SLURM_GPUS_ON_NODE"
    host = HostType(name="toy", accelerator="gpu:toy", accelerators=2, cpus=2, memory_bytes=2**28)
    job = lab.job(
        f'{told}; echo "$WORDS"', processes=2, host=host, environment={"WORDS": "a 'b\n$c"}
    )
    assert lab.launcher.preflight(job) == []
    handle = lab.launcher.submit(job)
    assert lab.end(handle) == JobState(done=True, succeeded=True)
    lines = [Path(job.logs, f"{place:04d}.log").read_text().splitlines() for place in range(2)]
    address = lines[0][0].split()[-1]
    assert address.startswith("127.0.0.1:")
    assert int(address.split(":")[1]) >= 61440
    for place, found in enumerate(lines):
        assert found == [f"{place} of 2 at {address}", "2", "a 'b", "$c"]
    assert lab.launcher.logs(handle, process=1, lines=2) == ["a 'b", "$c"]


def test_the_process_that_failed_first_gives_the_reason(lab):
    endings = {
        "exit 3": ("error", {"exit_code": 3}),
        "exit 124": ("hang", {"exit_code": 124}),
        "kill -KILL $$": ("killed", {"signal": "SIGKILL", "exit_code": 137}),
        "exit 75": ("preempted", {"exit_code": 75}),
    }
    command = "[ $MARIN_PROCESS = 0 ] && sleep 600; "
    handles = {ending: lab.start(command + ending) for ending in endings}
    for ending, (reason, evidence) in endings.items():
        state = lab.end(handles[ending])
        assert (state.succeeded, state.reason) == (False, reason)
        place = {"process": 1, "node": state.evidence["node"], "slurm_state": "FAILED"}
        assert state.evidence == {**evidence, **place, "slurm_job": state.evidence["slurm_job"]}
        assert state.evidence["node"] in NODES
    wait_until(lambda: len(lab.cluster.jobs()) <= 1, "the end of all but the overdue job")


def test_a_notice_reaches_all_processes_and_each_has_time_to_save(lab):
    save = (
        "trap 'kill $!; sleep $MARIN_PROCESS; echo saved; exit 75' TERM; echo up; sleep 600 & wait"
    )
    handle = lab.start(save)
    lab.run_until(handle, "up")
    lab.cluster.run("scancel", "--signal=TERM", json.loads(handle)["job"])
    state = lab.end(handle)
    assert (state.reason, state.evidence["exit_code"]) == ("preempted", 75)
    lab.run_until(handle, "saved")


def test_a_job_that_hangs_shows_its_stacks_and_bystanders_live(lab, tmp_path):
    program = tmp_path / "hang.py"
    program.write_text(
        "import faulthandler, signal, subprocess, time\n"
        "faulthandler.register(signal.SIGUSR1, all_threads=True)\n"
        "child = subprocess.Popen(['sleep', '600'])\n"
        "def wait_for_ever():\n"
        "    print('up', flush=True)\n"
        "    child.wait()\n"
        "    print('the child has died', flush=True)\n"
        "wait_for_ever()\n"
    )
    handle = lab.start(f"exec {sys.executable} {program}")
    lab.run_until(handle, "up")
    lab.launcher.dump_stacks(handle)
    lab.run_until(handle, "in wait_for_ever")
    assert not lab.launcher.state(handle).done
    lab.launcher.cancel(handle)
    assert "the child has died" not in lab.log(handle, 0)


def test_cancel_leaves_nothing_of_a_job_that_resists_and_of_one_that_waits(lab):
    resist = "trap : TERM INT; setsid bash -c 'trap : TERM INT; while :; do sleep 1; done' & "
    handle = lab.start(f"{resist} echo up; while :; do sleep 1; done", processes=3)
    lab.run_until(handle, "up", processes=3)
    every = HostType(name="all", cpus=4)
    waiting = lab.start("echo never", processes=3, host=every)
    assert "PENDING: " in (lab.launcher.state(waiting).waits or "")
    numbers = [json.loads(one)["job"] for one in (handle, waiting)]
    for one in (waiting, handle):
        started = time.monotonic()
        lab.launcher.cancel(one)
        assert time.monotonic() - started < CANCEL_SECONDS
    assert not set(numbers) & set(lab.cluster.jobs())
    left = [Path(f"/proc/{pid}/environ").read_bytes() for pid in lab.cluster.processes()]
    assert not any(f"SLURM_JOB_ID={numbers[0]}\0".encode() in found for found in left)
    for one in (waiting, handle):
        lab.launcher.cancel(one)  # again, and nothing happens
        assert not lab.end(one).succeeded
    assert lab.end(waiting).reason == "user_cancel"
    assert lab.launcher.logs(waiting) == []


def test_a_node_that_dies_is_named(lab):
    handle = lab.start(FOREVER)
    lab.run_until(handle, "up")
    number = json.loads(handle)["job"]
    nodes = lab.cluster.run("squeue", "-h", "-j", number, "-o", "%N").strip()
    lost = lab.cluster.run("scontrol", "show", "hostnames", nodes).split()[1]
    lab.cluster.kill_node(lost)
    state = lab.end(handle)
    assert (state.reason, state.evidence["node"], state.evidence["process"]) == ("killed", lost, 1)
    lab.cluster.start_node(lost)
    wait_until(lambda: lost in lab.cluster.nodes("idle"), "the node")


@pytest.mark.parametrize("reached", [True, False])
def test_a_submission_whose_answer_is_lost_is_one_job(lab, reached, tmp_path, monkeypatch):
    real = shutil.which("sbatch")
    fake = tmp_path / "bin" / "sbatch"
    fake.parent.mkdir()
    lost = "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation"
    fake.write_text(
        f"#!/bin/bash\n[ -e {tmp_path}/calls ] && again=yes\necho call >> {tmp_path}/calls\n"
        f'[ -n "$again" ] && exec {real} "$@"\n'
        + (f'{real} "$@" > /dev/null\n' if reached else "")
        + f'echo "{lost}" >&2; exit 1\n'
    )
    fake.chmod(0o755)
    with monkeypatch.context() as patch:
        patch.setenv("PATH", f"{fake.parent}:{os.environ['PATH']}")
        job = lab.job(FOREVER)
        handle = lab.launcher.submit(job)
    assert len((tmp_path / "calls").read_text().split()) == (1 if reached else 2)
    assert SlurmLauncher(lab.settings).submit(job) == handle  # its submitter died before it heard
    name = json.loads(handle)["name"]
    assert lab.cluster.run("squeue", "-h", f"--name={name}", "-o", "%i").split() == [
        json.loads(handle)["job"]
    ]
    lab.launcher.cancel(handle)


def test_what_slurm_refuses_is_said_before_and_after(lab, monkeypatch):
    launcher = SlurmLauncher(replace(lab.settings, partition="nowhere"))
    (fault,) = launcher.preflight(lab.job("true"))
    assert "invalid partition specified: nowhere" in fault
    with pytest.raises(StageError, match="invalid partition specified: nowhere"):
        launcher.submit(lab.job("true"))
    (fault,) = lab.launcher.preflight(lab.job("true", processes=4))
    assert "Requested node configuration is not available" in fault
    monkeypatch.setenv("PATH", "/nowhere")
    (fault,) = lab.launcher.preflight(lab.job("true"))
    assert fault.startswith("no sbatch, srun, scontrol, squeue, scancel in PATH")
    with pytest.raises(ValueError, match="leave nodes, tasks, names, logs and new tries"):
        replace(lab.settings, options=("--requeue",))


def test_logs_go_to_a_bucket_when_the_job_ends(lab):
    handle = lab.start("echo from $MARIN_PROCESS", logs="memory://bucket/logs")
    assert lab.end(handle).succeeded
    lab.launcher.cancel(handle)
    memory = fsspec.filesystem("memory")
    assert [memory.cat(f"/bucket/logs/{place:04d}.log") for place in range(2)] == [
        b"from 0\n",
        b"from 1\n",
    ]


def test_a_job_past_its_limit(overdue):
    lab, handle = overdue
    state = lab.end(handle)
    assert (state.reason, state.evidence["slurm_state"]) == ("timeout", "TIMEOUT")


def test_a_controller_that_crashes_and_one_that_forgets(lab, tmp_path):
    go = tmp_path / "go"
    patient = lab.start(f"echo up; while [ ! -e {go} ]; do sleep 0.1; done")
    failed = lab.start("[ $MARIN_PROCESS = 0 ] && sleep 600; exit 3")
    assert lab.end(failed).evidence["exit_code"] == 3
    lab.run_until(patient, "up")
    lab.cluster.stop_controller()
    state = SlurmLauncher(lab.settings).state(patient)
    assert not state.done
    assert "controller does not answer" in (state.waits or "")
    (fault,) = lab.launcher.preflight(lab.job("true"))
    assert "controller does not answer" in fault
    lab.cluster.start_controller()
    go.touch()
    assert lab.end(patient) == JobState(done=True, succeeded=True)

    lab.cluster.stop_controller()
    lab.cluster.forget_jobs()
    lab.cluster.start_controller()
    wait_until(lambda: lab.cluster.nodes("idle") == set(NODES), "three idle nodes")
    anew = lab.start("true")
    assert lab.end(anew).succeeded
    launcher = SlurmLauncher(lab.settings)
    assert int(json.loads(anew)["job"]) <= int(json.loads(failed)["job"])
    assert launcher.state(patient).succeeded
    state = launcher.state(failed)
    assert (state.reason, state.evidence["exit_code"], state.evidence["process"]) == ("error", 3, 1)
    Path(json.loads(patient)["folder"], "ended").unlink()
    state = SlurmLauncher(lab.settings).state(patient)
    assert (state.done, state.succeeded, state.reason) == (True, False, "killed")
    launcher.cancel(patient)
