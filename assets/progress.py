"""Turns a build's progress into lines: in the run's log, and for whoever listens."""

import time
from collections.abc import Mapping
from typing import Protocol

import dagster as dg

LOG_SECONDS = 10.0


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


def reporter(context: dg.AssetExecutionContext, address: str):
    """Returns the `progress` callback of one build."""
    last_logged = time.monotonic()
    first: tuple[float, float] | None = None  # when, and what was done then: a start takes longer

    def report(done: float, total: float | None, unit: str, metrics: Mapping[str, float]) -> None:
        nonlocal last_logged, first
        now = time.monotonic()
        if first is None or done < first[1]:
            first = (now, done)
        seconds = now - first[0]
        rate = (done - first[1]) / seconds if seconds > 0 else 0.0
        line = progress_line(done, total, unit, metrics, rate)
        tell(line)
        if now - last_logged >= LOG_SECONDS:
            last_logged = now
            context.log.info(f"{address}: {line}")

    return report


def progress_line(
    done: float, total: float | None, unit: str, metrics: Mapping[str, float], rate: float
) -> str:
    """`120/500 documents, 30.0/s, 13 s left, loss 3.21`."""
    parts = [f"{done:,.0f}/{total:,.0f} {unit}" if total else f"{done:,.0f} {unit}"]
    if rate > 0:
        parts.append(f"{rate:,.1f}/s")
    if total and rate > 0 and done < total:
        parts.append(f"{(total - done) / rate:,.0f} s left")
    parts += [f"{name} {value:.4g}" for name, value in metrics.items()]
    return ", ".join(parts)
