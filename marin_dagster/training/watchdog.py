"""Turns a training that stands still into an end with a reason and the stacks of its threads."""

import contextlib
import faulthandler
import statistics
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator

FIRST_SECONDS = 900.0  # for a step, until enough of them were timed
LEAST_SECONDS = 60.0
STEPS = 20.0  # medians of a step
TIMED = 8  # steps before their median is trusted
LONG_SECONDS = 3600.0  # for whatever else takes long: compiling, evaluating, publishing
MOST_TICK = 5.0  # seconds that one tick counts at most: a process that was stopped is not late


class Watchdog:
    """Calls `stalled` with a message, once, when something takes much longer than it should.

    A step may take `STEPS` medians of the last ones. The time in which this whole process stood
    still, stopped or suspended, does not count. Use as a context manager.
    """

    def __init__(self, stalled: Callable[[str], None], tick: float = 1.0):
        self._stalled, self._tick = stalled, tick
        self._steps: deque[float] = deque(maxlen=128)
        self._what, self._limit, self._spent = "nothing", float("inf"), 0.0
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True, name="marin-watchdog")

    def __enter__(self) -> "Watchdog":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    @contextlib.contextmanager
    def step(self, number: int) -> Iterator[None]:
        """Times a step, and limits it by those before."""
        began = time.monotonic()
        with self.during(f"step {number}", self.step_seconds()):
            yield
        self._steps.append(time.monotonic() - began)

    @contextlib.contextmanager
    def during(self, what: str, seconds: float = LONG_SECONDS) -> Iterator[None]:
        """Limits a block; within a block, the inner one counts."""
        with self._lock:
            before = self._what, self._limit, self._spent
            self._what, self._limit, self._spent = what, seconds, 0.0
        try:
            yield
        finally:
            with self._lock:
                self._what, self._limit, self._spent = before

    def step_seconds(self) -> float:
        """The limit of a step."""
        if len(self._steps) < TIMED:
            return FIRST_SECONDS
        return max(LEAST_SECONDS, STEPS * statistics.median(self._steps))

    def _watch(self) -> None:
        last = time.monotonic()
        while not self._done.wait(self._tick):
            now = time.monotonic()
            with self._lock:
                self._spent += min(now - last, MOST_TICK)
                late, what, limit = self._spent > self._limit, self._what, self._limit
            last = now
            if late:
                self._stalled(f"{what} has taken more than {limit:.0f} s")
                return


def dump_stacks() -> None:
    """Writes the stacks of all threads to the log of this process."""
    sys.stderr.flush()
    faulthandler.dump_traceback(file=2, all_threads=True)
