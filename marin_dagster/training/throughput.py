"""Turns the clock of a run into speeds, and into the time that was not spent on training."""

import resource
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import jax

GIB = 1 << 30
OTHER = ("input", "checkpoint", "eval")  # what the time between steps is spent on


class Meter:
    """Measures one step after another.

    `throughput/tokens_per_second` counts the seconds of the step alone, from its call to its
    numbers; `throughput/tokens_per_second_overall` the whole time since the step before, with
    waiting for input, checkpoints, evaluations and all else on the host. A run is slower than its
    steps by the difference, so both are shown.

    MFU (Chowdhery et al. 2022) is the share of the devices' peak that the model's own FLOPs make
    up, from active parameters; it is left out where the peak is not known.
    """

    def __init__(
        self,
        peak_flops: float | None,  # of all devices together, per second
        clock: Callable[[], float] = time.perf_counter,
    ):
        self._peak, self._clock = peak_flops, clock
        self._spent: defaultdict[str, float] = defaultdict(float)
        self._last = clock()

    @contextmanager
    def spent(self, what: str) -> Iterator[None]:
        """Counts the time of a block as `what`: "input", "step", "checkpoint" or "eval"."""
        began = self._clock()
        try:
            yield
        finally:
            self._spent[what] += self._clock() - began

    def metrics(self, tokens: int, flops: float) -> dict[str, float]:
        """The numbers of a step of these tokens and FLOPs that has just ended; begins the next."""
        now = self._clock()
        whole, self._last = now - self._last, now
        spent, self._spent = self._spent, defaultdict(float)
        seconds = spent["step"]
        numbers = {
            "throughput/step_seconds": seconds,
            "throughput/iteration_seconds": whole,
            "throughput/tokens_per_second": tokens / seconds,
            "throughput/tokens_per_second_overall": tokens / whole,
            **{f"throughput/{what}_seconds": spent[what] for what in OTHER},
            "throughput/host_seconds": max(0.0, whole - sum(spent.values())),
            "throughput/input_wait_fraction": spent["input"] / whole,
            "throughput/gflops_per_second": flops / seconds / 1e9,
            **memory_metrics(),
        }
        if self._peak is not None:
            numbers["throughput/mfu"] = flops / seconds / self._peak
        return numbers


def memory_metrics() -> dict[str, float]:
    """The most memory that this process has held, and its first device where that says so."""
    unit = 1 if sys.platform == "darwin" else 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    numbers = {"memory/host_peak_gib": peak / GIB}
    stats = jax.local_devices()[0].memory_stats() or {}
    if "peak_bytes_in_use" in stats:
        numbers["memory/device_peak_gib"] = stats["peak_bytes_in_use"] / GIB
        numbers["memory/device_in_use_gib"] = stats["bytes_in_use"] / GIB
    return numbers
