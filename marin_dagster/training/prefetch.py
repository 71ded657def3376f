"""Turns batches by step into a queue that a thread keeps filled, a few ahead."""

import queue
import threading
from collections.abc import Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np

from marin_dagster.data.mixture import Batch
from marin_dagster.recipe import StageError

PREFETCHED = 2  # batches ready before they are asked for


@runtime_checkable
class Batches(Protocol):
    """Batches by step number: a pure function, so that a resume needs no state."""

    def batch(self, step: int) -> Batch: ...
    def metrics(self, step: int) -> Mapping[str, float]:
        """What is logged of the data of a step."""
        ...


class Prefetch:
    """Makes batches in a thread, a few ahead; what it raises is raised by `next`."""

    def __init__(self, batches: Batches, steps: range):
        self._ready: queue.Queue[Any] = queue.Queue(PREFETCHED)
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=self._fill, args=(batches, steps), daemon=True, name="marin-batches"
        )

    def __enter__(self) -> "Prefetch":
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._stop.set()
        self._thread.join()

    def next(self) -> dict[str, np.ndarray]:
        while True:
            try:
                item = self._ready.get(timeout=1.0)
            except queue.Empty:
                if self._thread.is_alive():
                    continue
                raise RuntimeError(
                    "the thread that makes batches has died; its last words are in the log"
                ) from None
            if isinstance(item, BaseException):
                raise item
            return item

    def _fill(self, batches: Batches, steps: range) -> None:
        for item in _batches_or_error(batches, steps):
            while not self._stop.is_set():
                try:
                    self._ready.put(item, timeout=0.1)
                    break
                except queue.Full:
                    continue
            if self._stop.is_set():
                return


def _batches_or_error(batches: Batches, steps: range) -> Iterator[Any]:
    try:
        for step in steps:
            batch = batches.batch(step)
            yield {
                "tokens": batch.tokens,
                "targets": batch.targets,
                "loss_weights": batch.loss_weights,
                "segment_ids": batch.segment_ids,
            }
    except (OSError, ValueError, StageError) as error:
        yield error
