"""Turns the notice that this process must end into a resume point, whatever it is doing.

The thread that hears the signal saves, not the training: that one may be compiling or evaluating
for minutes, and then its state is whole and can be read. In a step the state's memory is being
reused; the thread waits for the end of the step. Is the grace over before that, the run has fallen
back to its newest resume point, and says by how many steps.
"""

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Protocol

import jax
from jax.experimental import multihost_utils

from marin_dagster.failure import PREEMPTED_EXIT
from marin_dagster.recipe import StageError
from marin_dagster.termination import termination

USED = 0.9  # of the grace; the rest is for the last words


class Work(Protocol):
    """A training whose state can be saved while it is not `busy`."""

    @property
    def step(self) -> int:
        """Steps done."""
        ...

    def settle(self) -> int:
        """Waits for what is being written; returns the step that a next attempt starts from."""
        ...

    def save_now(self) -> None:
        """Writes the state and waits until it is durable."""
        ...

    def said(self, event: str, message: str, **facts: int) -> None:
        """Tells people and the time line."""
        ...


class Preemption:
    """Watches over one training; `handle` is called with the name of the signal."""

    def __init__(self, work: Work, grace_seconds: float):
        self._work, self._grace_seconds = work, grace_seconds
        self._whole = threading.Lock()  # held while the state is in parts
        self._stopping = threading.Event()

    @contextlib.contextmanager
    def busy(self) -> Iterator[None]:
        """Within the block the state cannot be read. Does not come back once the end has begun."""
        if self._stopping.is_set():
            threading.Event().wait()
        with self._whole:
            yield

    def handle(self, signal_name: str) -> None:
        """Saves, says what became of it, and ends the process."""
        self._stopping.set()
        message, lost = self._save(time.monotonic() + USED * self._grace_seconds)
        text = f"{signal_name}: {message}"
        self._work.said("preemption", text, lost_steps=lost)
        evidence = {"signal": signal_name, "step": self._work.step, "lost_steps": lost}
        if signal_name == "SIGINT":
            termination.end(130, "user_cancel", text, evidence)
        termination.end(PREEMPTED_EXIT, "preempted", text, evidence)

    def agree(self) -> None:
        """Between steps of several processes: all save after the same step once one was told.

        JAX hears SIGTERM there and spreads the notice. Raises StageError("preempted") after the
        save.
        """
        if jax.process_count() == 1 or not multihost_utils.reached_preemption_sync_point(
            self._work.step
        ):
            return
        self._work.save_now()
        text = f"SIGTERM: saved step {self._work.step}, as all {jax.process_count()} processes did"
        self._work.said("preemption", text, lost_steps=0)
        raise StageError("preempted", text, {"step": self._work.step, "lost_steps": 0})

    def _save(self, deadline: float) -> tuple[str, int]:
        try:
            durable = self._work.settle()
            if durable == self._work.step:
                return f"step {durable} is what the next attempt starts from, nothing is lost", 0
            why = f"the step after {self._work.step} did not end within {self._grace_seconds:g} s"
            if self._whole.acquire(timeout=max(0.0, deadline - time.monotonic())):
                self._work.save_now()
                return f"saved step {self._work.step}", 0
        except StageError as error:
            why, durable = error.message, self._work.settle()
        lost = self._work.step - durable
        return f"fell back to step {durable}, {lost} steps lost: {why}", lost
