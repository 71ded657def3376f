"""Turns the questions of somebody in a hurry into few for a scheduler."""

import math
import time
from collections.abc import Callable

from marin_dagster.launch.base import JobState


class Polled:
    """The last states of jobs; each job is asked for at most every `seconds`, until it is done."""

    def __init__(self, seconds: float):
        self._seconds = seconds
        self._known: dict[str, tuple[float, JobState]] = {}  # by handle; when it was asked

    def state(
        self, handle: str, ask: Callable[[str], JobState], *, at_once: bool = False
    ) -> JobState:
        """What `ask` says of a handle, or what it has said; `at_once` does not wait to ask."""
        asked, known = self._known.get(handle, (-math.inf, JobState(done=False)))
        recent = time.monotonic() - asked < self._seconds
        if known.done or (recent and not at_once):
            return known
        known = ask(handle)
        self._known[handle] = time.monotonic(), known
        return known
