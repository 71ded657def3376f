"""Measures how the cost of our training step grows with tokens, layers and active experts.

    python benchmarks/train_scaling.py --plot scaling.svg

One thing is doubled at a time; every point is a process of its own that lives for the whole run,
and they take turns in random order. Cost that grows linearly is a straight line: the result says
how far its points lie from one, at most.
"""

import argparse
import contextlib
import json
import random
import statistics
import sys
from pathlib import Path
from typing import Any

import numpy as np
from candidate import Candidate

from marin_dagster.plots import line_chart
from resources.launcher import CPU_MEMORY

BASE = {
    "vocab_size": 2048,
    "hidden_dim": 128,
    "num_layers": 2,
    "num_heads": 4,
    "num_kv_heads": 4,
    "head_dim": 32,
    "expert_dim": 256,
    "num_experts": 16,
    "num_experts_per_token": 2,
    "num_shared_experts": 1,
    "seq_len": 256,
    "batch_size": 8,
    "num_steps": 1000,  # of the schedule
    "learning_rate": 3e-4,
}
GRID = {
    "tokens": ("batch_size", (4, 8, 16)),
    "layers": ("num_layers", (1, 2, 4)),
    "active experts": ("num_experts_per_token", (1, 2, 4)),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plot", help="a file for the plot, SVG")
    parser.add_argument("--rounds", type=int, default=12)
    args = parser.parse_args()
    points = {json.dumps(sizes): sizes for line in _lines().values() for sizes in line.values()}
    with contextlib.ExitStack() as stack:
        processes = {
            key: stack.enter_context(Candidate(sys.executable, "our_step.py", sizes, CPU_MEMORY))
            for key, sizes in points.items()
        }
        seconds = _interleave(processes, args.rounds)
    measured = {
        name: {value: seconds[json.dumps(sizes)] for value, sizes in line.items()}
        for name, line in _lines().items()
    }
    if args.plot:
        Path(args.plot).write_text(_plot(measured))
    departures = {name: _departure(line) for name, line in measured.items()}
    print(json.dumps({"cpu_seconds": measured, "departure_from_a_line": departures, "base": BASE}))


def _lines() -> dict[str, dict[int, dict[str, Any]]]:
    """Sizes by the value of what is varied, by its name."""
    return {
        name: {value: {**BASE, field: value} for value in values}
        for name, (field, values) in GRID.items()
    }


def _interleave(processes: dict[str, Candidate], rounds: int) -> dict[str, float]:
    """CPU seconds of a step of each, the median of the rounds; one's first round is not counted."""
    samples: dict[str, list[float]] = {key: [] for key in processes}
    order = random.Random(0)
    for _ in range(rounds + 1):
        keys = list(processes)
        order.shuffle(keys)
        for key in keys:
            samples[key].append(processes[key].sample(steps=3)["cpu_seconds"])
    return {key: statistics.median(taken[1:]) for key, taken in samples.items()}


def _departure(line: dict[int, float]) -> float:
    """The largest distance of a point from the best straight line, as a share of the point."""
    xs, ys = np.array(list(line), float), np.array(list(line.values()))
    fitted = np.polyval(np.polyfit(xs, ys, 1), xs)
    return float(np.max(np.abs(fitted - ys) / ys))


def _plot(measured: dict[str, dict[int, float]]) -> str:
    series = {
        name: ([value / BASE[GRID[name][0]] for value in line], list(line.values()))
        for name, line in measured.items()
    }
    return line_chart(series, "Cost of a training step", "times the base", "CPU seconds")


if __name__ == "__main__":
    main()
