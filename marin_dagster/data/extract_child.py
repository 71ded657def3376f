"""Turns pages into their text in a child process, which a page may kill and which is replaced."""

import contextlib
import pickle
import select
import signal
import subprocess
import sys
from typing import Self

from marin_dagster.data.extract_worker import Extracted, Settings
from marin_dagster.data.warc import Page
from marin_dagster.recipe import StageError

WALL_FACTOR = 20  # a child silent for so many times its processor limit is taken for dead


class ExtractionChild:
    """A process that extracts one page at a time. One that dies costs only the page that it had."""

    def __init__(self, settings: Settings):
        self._settings = settings
        self._start()

    def extract(self, page: Page) -> Extracted:
        """The text of a page; if the process dies of it, what the other extractor makes of it."""
        answer = self._ask(page, skip=0)
        if answer is not None:
            return answer
        death = self._bury()
        if (other := self._ask(page, skip=1)) is None:
            self._bury()
        return other if other is not None and other.text else death

    def close(self) -> None:
        self._process.kill()
        self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self) -> None:
        command = [sys.executable, "-m", "marin_dagster.data.extract_worker"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        self._is_late = False
        self._send(self._settings)
        try:
            pickle.load(self._stdout)  # it has imported its libraries
        except (EOFError, pickle.UnpicklingError) as error:
            message = f"the extraction process does not start (exit code {self._end()})"
            raise StageError("error", f"{message}; see the log of the shard's worker") from error

    def _ask(self, page: Page, skip: int) -> Extracted | None:
        """What the process answers; None when it has died, or has not answered in time."""
        self._send((page.body, page.content_type, skip))
        limit = self._settings.cpu_seconds * WALL_FACTOR
        self._is_late = not select.select([self._stdout], [], [], limit)[0]
        if self._is_late:
            self._process.kill()
            return None
        try:
            return pickle.load(self._stdout)
        except (EOFError, pickle.UnpicklingError):
            return None

    def _bury(self) -> Extracted:
        """Puts a new process in the place of the dead one; returns what it died of."""
        code, is_late = self._end(), self._is_late
        self._start()
        if is_late or code == -signal.SIGPROF:
            message = f"above cpu_seconds={self._settings.cpu_seconds} of processor time"
            return Extracted(error="timeout", message=message)
        message = f"the extractor's process ended with code {code}"
        return Extracted(error="extractor_died", message=message)

    def _end(self) -> int:
        code = self._process.wait()
        self._stdout.close()
        with contextlib.suppress(BrokenPipeError):
            self._stdin.close()
        return code

    def _send(self, value: object) -> None:
        with contextlib.suppress(BrokenPipeError):  # if it died, its closed stdout says so
            pickle.dump(value, self._stdin)
            self._stdin.flush()
