"""Runs one process of a job below srun: says which one it is, and writes down how it ended.

`python -m marin_dagster.launch.slurm_rank FOLDER SECONDS COMMAND...` is what srun starts, once for
each process. Slurm sends signals to everything that runs in a job, so this process

- leaves SIGTERM to the command, which gets it too, and kills what is left SECONDS later, and
- turns SIGURG, which nobody else takes notice of, into a SIGUSR1 for the command alone.

When one process ends with an error, srun kills the others. One that was told to end therefore
waits for them, until the SECONDS are over, so that each can save what it has.
"""

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from marin_dagster.failure import judge_exit
from marin_dagster.launch.keeper import end_like
from marin_dagster.memory import oom_kills
from marin_dagster.process import adopt_orphans, kill_descendants

WATCHED = (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM, signal.SIGURG)
POLL_SECONDS = 0.1
TOLD_SECONDS = 2.0  # Slurm signals the processes of a node one after the other


def main(folder: Path, seconds: float, command: list[str]) -> int:
    """Returns the command's exit status, negative for a signal."""
    process = int(os.environ["SLURM_PROCID"])
    signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
    adopt_orphans()
    kills = oom_kills()
    worker = subprocess.Popen(
        command,
        env={**os.environ, "MARIN_PROCESS": str(process)},
        preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_UNBLOCK, WATCHED),
    )
    deadline = math.inf
    while worker.poll() is None and time.monotonic() < deadline:
        found = signal.sigtimedwait(WATCHED, min(1.0, max(0.0, deadline - time.monotonic())))
        if found is not None and found.si_signo == signal.SIGURG:
            worker.send_signal(signal.SIGUSR1)
        elif found is not None and found.si_signo in (signal.SIGINT, signal.SIGTERM):
            deadline = min(deadline, time.monotonic() + seconds)
    kill_descendants(os.getpid())
    status = worker.wait()
    asked = deadline < math.inf or _was_told(TOLD_SECONDS if status == -signal.SIGTERM else 0.0)
    reason, evidence = judge_exit(status, oom_kills=oom_kills() - kills)
    place = {"process": process, "node": os.environ.get("SLURMD_NODENAME", "")}
    ending = {"status": status, "asked": asked, "time": time.time(), "reason": reason}
    _write(folder / f"{process:04d}.json", {**ending, "evidence": {**evidence, **place}})
    if asked or reason == "preempted":  # by its own account, where only some of them were told
        latest = time.monotonic() + seconds
        _wait_for_all(folder, int(os.environ["SLURM_NTASKS"]), min(deadline, latest))
    return status


def _was_told(seconds: float) -> bool:
    """Whether a signal to end has come for this process too, or comes soon."""
    return signal.sigtimedwait((signal.SIGINT, signal.SIGTERM), seconds) is not None


def _wait_for_all(folder: Path, processes: int, deadline: float) -> None:
    while len(list(folder.glob("*.json"))) < processes and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)


def _write(path: Path, value: dict) -> None:
    part = path.with_suffix(".part")
    part.write_text(json.dumps(value))
    part.replace(path)


if __name__ == "__main__":
    end_like(main(Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]))
