"""Turns a job into a tree of processes on this machine."""

import contextlib
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from marin_dagster.failure import judge_exit
from marin_dagster.launch.base import Job, JobState
from marin_dagster.launch.logs import last_lines
from marin_dagster.memory import oom_kills
from marin_dagster.process import KILL_SECONDS


@dataclass(frozen=True, kw_only=True)
class LocalJob:
    keeper: subprocess.Popen = field(repr=False)  # ends as the job's command did
    log: Path
    oom_kills: int  # of the control group when the job began


class LocalLauncher:
    """Runs jobs as children of this process, each below a keeper that leaves nothing behind.

    A cancelled job has `grace_seconds` to end by itself; then it is killed.
    """

    def __init__(self, grace_seconds: float = 8.0):
        self._grace_seconds = grace_seconds

    def preflight(self, job: Job) -> list[str]:
        if job.processes == 1:
            return []
        return [f"processes={job.processes}, but a job on this machine is one process; use 1"]

    def submit(self, job: Job) -> LocalJob:
        path = Path(job.logs) / "0000.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        keeper = [sys.executable, "-m", "marin_dagster.launch.keeper", str(self._grace_seconds)]
        with open(path, "ab") as log:
            process = subprocess.Popen(
                [*keeper, *job.command],
                env={**os.environ, **job.environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # a terminal's Ctrl-C is for this process alone
            )
        return LocalJob(keeper=process, log=path, oom_kills=oom_kills())

    def state(self, handle: LocalJob) -> JobState:
        code = handle.keeper.poll()
        if code is None:
            return JobState(done=False)
        if code == 0:
            return JobState(done=True, succeeded=True)
        reason, evidence = judge_exit(code, oom_kills=oom_kills() - handle.oom_kills)
        return JobState(done=True, reason=reason, evidence=evidence)

    def dump_stacks(self, handle: LocalJob) -> None:
        handle.keeper.send_signal(signal.SIGUSR1)

    def cancel(self, handle: LocalJob) -> None:
        """Asks the tree to end, and insists: SIGINT, SIGTERM, SIGKILL."""
        handle.keeper.terminate()
        try:
            handle.keeper.wait(self._grace_seconds + 2 * KILL_SECONDS)
        finally:
            with contextlib.suppress(subprocess.TimeoutExpired):
                handle.keeper.send_signal(signal.SIGQUIT)  # does nothing once it has ended
                handle.keeper.wait(2 * KILL_SECONDS)

    def logs(self, handle: LocalJob, process: int = 0, lines: int = 50) -> list[str]:
        return last_lines(handle.log, lines)
