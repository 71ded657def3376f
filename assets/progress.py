"""Turns a build's progress into lines and into a series of numbers that Dagster plots live."""

import math
import time
from collections.abc import Mapping
from typing import Any, Protocol

import dagster as dg

from marin_dagster.recipe import Recipe

LOG_SECONDS = 10.0
LINE_METRICS = 3  # in a line; the series has all


class Listener(Protocol):
    """Somebody who follows the builds of this process."""

    def progress(self, line: str) -> None: ...

    def event(self, line: str) -> None: ...


_listeners: list[Listener] = []


def listen(listener: Listener) -> None:
    """Tells `listener` of the progress and events of builds in this process."""
    _listeners[:] = [listener]


def tell(line: str) -> None:
    """Tells the listeners how far a build is."""
    for listener in _listeners:
        listener.progress(line)


def announce(context: dg.AssetExecutionContext, line: str) -> None:
    """Writes an event to the run's log and tells the listeners."""
    context.log.info(line)
    for listener in _listeners:
        listener.event(line)


class Reporter:
    """The `progress` callback of one build.

    Lines go to the listeners and, now and then, to the run's log. Numbers go to the partition as
    observations: of a build with metrics from its first report to its last, of another once it
    has taken `LOG_SECONDS`.
    """

    def __init__(self, context: dg.AssetExecutionContext, recipe: Recipe):
        self._context = context
        self._recipe = recipe
        self._started = self._logged = time.monotonic()
        self._observed: float | None = None  # when
        self._pending: dict[str, Any] = {}
        self._first: tuple[float, float] | None = None  # when, and what was done: a start is slow

    def __call__(
        self, done: float, total: float | None, unit: str, metrics: Mapping[str, float]
    ) -> None:
        now = time.monotonic()
        if self._first is None or done < self._first[1]:
            self._first = (now, done)
        seconds = now - self._first[0]
        rate = (done - self._first[1]) / seconds if seconds > 0 else 0.0
        line = progress_line(done, total, unit, metrics, rate)
        tell(line)
        if now - self._logged >= LOG_SECONDS:
            self._logged = now
            self._context.log.info(f"{self._recipe.address}: {line}")
        numbers = {unit: done, **metrics}
        if rate > 0:
            numbers[f"{unit}_per_second"] = rate
        self._pending = {name: float(n) for name, n in numbers.items() if math.isfinite(n)}
        if self._due(now, bool(metrics)):
            self._observe(now)

    def close(self) -> None:
        """Observes what was reported last, if the series does not end with it yet."""
        if self._pending and self._observed is not None:
            self._observe(time.monotonic())

    def _due(self, now: float, has_metrics: bool) -> bool:
        if self._observed is None:
            return has_metrics or now - self._started >= LOG_SECONDS
        return now - self._observed >= interval(now - self._started)

    def _observe(self, now: float) -> None:
        self._observed = now
        numbers, self._pending = self._pending, {}
        self._context.log_event(
            dg.AssetObservation(
                asset_key=self._recipe.stage, partition=self._recipe.key, metadata=numbers
            )
        )


def interval(elapsed: float) -> float:
    """Seconds between observations after `elapsed` seconds of a build.

    Dense at first, then every half minute, then slower: ten days give about 4,500 events.
    """
    return max(1.0, min(elapsed / 30, 30.0), elapsed / 1_000)


def progress_line(
    done: float, total: float | None, unit: str, metrics: Mapping[str, float], rate: float
) -> str:
    """`120/500 documents, 30.0/s, 13 s left, loss 3.21`."""
    parts = [f"{done:,.0f}/{total:,.0f} {unit}" if total else f"{done:,.0f} {unit}"]
    if rate > 0:
        parts.append(f"{rate:,.1f}/s")
    if total and rate > 0 and done < total:
        parts.append(f"{(total - done) / rate:,.0f} s left")
    for name, value in list(metrics.items())[:LINE_METRICS]:
        parts.append(f"{name.rpartition('/')[2]} {value:.4g}")
    return ", ".join(parts)
