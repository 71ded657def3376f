"""Containers as processes of this machine: what the fakes of clusters run."""

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from marin_dagster.process import descendants, send

INHERITED = ("PATH", "PYTHONPATH", "HOME", "XLA_FLAGS")


class Container:
    """A process in a group of its own, which ends with it."""

    def __init__(self, command: list[str], variables: Mapping[str, str], log: Path):
        inherited = {name: os.environ[name] for name in INHERITED if name in os.environ}
        self.log = log
        with open(log, "ab") as file:
            self._process = subprocess.Popen(
                command,
                env={**inherited, **variables},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.pid = self._process.pid

    def watch(self, ended: Callable[[int], None]) -> None:
        """Calls `ended` with the exit status, as a shell has it, when all of it is over."""

        def wait() -> None:
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
            self.kill()
            code = self._process.wait()
            ended(code if code >= 0 else 128 - code)

        threading.Thread(target=wait, daemon=True).start()

    def stop(self, grace: float) -> None:
        """SIGTERM for the first process, and after the grace SIGKILL for all."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGTERM if grace > 0 else signal.SIGKILL)
        timer = threading.Timer(grace, self.kill)
        timer.daemon = True
        timer.start()

    def kill(self) -> None:
        if self._process.returncode is None:  # else the number may be another's
            send(descendants(self.pid), signal.SIGKILL)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)

    def execute(self, command: list[str]) -> int:
        """Runs a command for which the container's first process has the number 1."""
        words = [word.replace("USR1 1", f"USR1 {self.pid}") for word in command]
        return subprocess.run(words, check=False).returncode
