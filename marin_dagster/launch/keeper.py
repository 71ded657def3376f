"""Runs a command, and ends all that came of it: when it ends, when told to, when orphaned.

`python -m marin_dagster.launch.keeper SECONDS COMMAND...` stands between a launcher and a worker.
Whatever the worker starts stays below this process, in a session of its own or not, because
orphans are adopted (PR_SET_CHILD_SUBREAPER). So one walk down the tree finds everything. The exit
status is the worker's, after all of the rest is gone.

- SIGTERM: the tree gets SIGINT, half of SECONDS later SIGTERM, and SIGKILL when SECONDS are over.
- SIGQUIT, and the end of the parent: SIGKILL at once, for the next attempt may start now.
- SIGUSR1: passed on to the worker, which writes the stacks of its threads into its log.
"""

import contextlib
import os
import resource
import signal
import subprocess
import sys
import time

from marin_dagster.process import (
    adopt_orphans,
    descendants,
    die_with_parent,
    kill_descendants,
    send,
)

POLL_SECONDS = 0.05
WATCHED = (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGUSR1)


def main(seconds: float, command: list[str]) -> int:
    """Returns the worker's exit status, negative for a signal."""
    signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
    die_with_parent(signal.SIGQUIT)
    adopt_orphans()
    worker = subprocess.Popen(
        command,
        start_new_session=True,
        preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_UNBLOCK, WATCHED),
    )
    asked = False
    while worker.poll() is None:
        found = signal.sigtimedwait(WATCHED, 1.0)
        number = found.si_signo if found else 0
        if number == signal.SIGUSR1:
            worker.send_signal(signal.SIGUSR1)
        elif number == signal.SIGQUIT:
            break
        elif number == signal.SIGTERM:
            asked = True
            _ask(worker, seconds)
            break
        else:  # also what Python returns, not a signal at all, when it was stopped and goes on
            _reap(worker.pid)
    kill_descendants(os.getpid())
    status = worker.wait()
    return 128 + signal.SIGTERM if asked else status


def _ask(worker: subprocess.Popen, seconds: float) -> None:
    """Gives the tree `seconds` to end by itself; stops early when nothing is left of it."""
    started = time.monotonic()
    for number, until in ((signal.SIGINT, seconds / 2), (signal.SIGTERM, seconds)):
        send(descendants(os.getpid()), number)
        while descendants(os.getpid()) and time.monotonic() - started < until:
            worker.poll()
            time.sleep(POLL_SECONDS)


def _reap(worker: int) -> None:
    """Collects adopted processes that have ended; the worker's status is left to its owner."""
    with contextlib.suppress(ChildProcessError):
        while True:
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if found is None or found.si_pid == worker:
                return
            os.waitpid(found.si_pid, 0)


def end_like(status: int) -> None:
    """Ends this process as another one has ended."""
    if status < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        number = signal.Signals(-status)
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])
        os.kill(os.getpid(), number)
    sys.exit(status)


if __name__ == "__main__":
    end_like(main(float(sys.argv[1]), sys.argv[2:]))
