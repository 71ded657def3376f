"""Turns a job into a process group on this machine."""

import os
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

from marin_dagster.launch.base import Job, JobState


@dataclass(frozen=True, kw_only=True)
class LocalJob:
    process: subprocess.Popen = field(repr=False)
    log: str


class LocalLauncher:
    """Runs jobs as children of this process, each in a process group of its own."""

    def __init__(self, grace_seconds: float = 10.0):
        self._grace_seconds = grace_seconds

    def submit(self, job: Job) -> LocalJob:
        Path(job.log).parent.mkdir(parents=True, exist_ok=True)
        with open(job.log, "ab") as log:
            process = subprocess.Popen(
                list(job.command),
                env={**os.environ, **job.environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return LocalJob(process=process, log=job.log)

    def state(self, handle: LocalJob) -> JobState:
        code = handle.process.poll()
        if code is None:
            return JobState(done=False)
        if code == 0:
            return JobState(done=True, succeeded=True)
        if code > 0:
            return JobState(done=True, reason="error", evidence=f"exit code {code}")
        name = signal.Signals(-code).name
        reason = "killed"
        if -code == signal.SIGKILL and _kernel_ran_out_of_memory():
            reason = "oom"
        return JobState(done=True, reason=reason, evidence=f"signal {name}")

    def cancel(self, handle: LocalJob) -> None:
        """Asks the group to end, and insists: SIGINT, SIGTERM, SIGKILL."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
            if not _signal_group(handle.process.pid, number):
                break
            deadline = time.monotonic() + self._grace_seconds
            while time.monotonic() < deadline and _group_lives(handle.process):
                time.sleep(0.05)
        handle.process.wait()

    def logs(self, handle: LocalJob, lines: int = 50) -> list[str]:
        return Path(handle.log).read_text(errors="replace").splitlines()[-lines:]


def _group_lives(process: subprocess.Popen) -> bool:
    process.poll()  # reaps the leader, so that its group can vanish
    return _signal_group(process.pid, 0)


def _signal_group(group: int, number: int) -> bool:
    """Sends a signal to a process group; False when the group is gone."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    return True


def _kernel_ran_out_of_memory() -> bool:
    """True when this control group has counted an out-of-memory kill (Linux, cgroup v2)."""
    try:
        events = Path("/sys/fs/cgroup/memory.events").read_text().split()
    except OSError:
        return False
    counts = dict(zip(events[::2], events[1::2], strict=False))
    return int(counts.get("oom_kill", 0)) > 0
