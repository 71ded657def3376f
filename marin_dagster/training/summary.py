"""Turns the history of a run into the numbers and pictures of its artifact."""

import collections
import dataclasses
import statistics
from collections.abc import Mapping, Sequence

from marin_dagster.models.config import ModelConfig
from marin_dagster.plots import line_chart
from marin_dagster.training.metrics import Row

ROUTER_COLUMNS = (
    "max_load_ratio",
    "min_load_ratio",
    "routing_entropy",
    "bias_range",
    "margin_min",
    "margin_max",
    "dropped",
)
SETTLED = 5  # first steps of an attempt, which compile and warm up, are not timed


def run_numbers(
    history: Sequence[Row], config: ModelConfig, vocab_size: int
) -> dict[str, int | float]:
    """The last losses, the median speed, and the size of the model."""
    count = config.parameters(vocab_size)
    last = history[-1]
    accepted = [row for row in history if not row.get("train/skipped")] or history
    speeds = [row["throughput/tokens_per_second"] for row in history]
    numbers: dict[str, int | float] = {
        "steps": last["step"],
        "tokens": last["tokens"],
        "attempts": last["attempt"],
        "skipped_steps": len(history) - len(accepted),
        "first_train_loss": _rounded(accepted[0]["train/cross_entropy"]),
        "train_loss": _rounded(_mean_of_last(accepted, "train/cross_entropy")),
        "tokens_per_second": round(statistics.median(speeds[SETTLED:] or speeds), 1),
        "parameters": count.total,
        "active_parameters": count.active,
        "flops": _flops(history, config, vocab_size),
    }
    if "moe/max_load_ratio" in last:
        numbers["max_load_ratio"] = _rounded(_mean_of_last(history, "moe/max_load_ratio"))
    if "throughput/mfu" in last:
        mfu = [row["throughput/mfu"] for row in history]
        numbers["mfu"] = _rounded(statistics.median(mfu[SETTLED:] or mfu))
    for key in ("eval/loss", "eval/bits_per_byte"):
        if key in last:
            numbers[key.replace("/", "_")] = _rounded(last[key])
    return numbers


def run_plots(history: Sequence[Row], levels: Mapping[str, float]) -> dict[str, str]:
    """Curves of the loss (beside `levels`, in nats), the gradient norm, the routers, the speed."""
    losses = {"training": _points(history, "train/cross_entropy")}
    evaluated = _points(history, "eval/loss")
    if evaluated[0]:
        losses["validation"] = evaluated
    norm = {"gradient": _points(history, "train/grad_norm")}
    rate = {"learning rate": _points(history, "train/learning_rate")}
    settled = history[SETTLED:] or history
    speed = {
        "steps alone": _points(settled, "throughput/tokens_per_second"),
        "with all between": _points(settled, "throughput/tokens_per_second_overall"),
    }
    routers = {
        "busiest expert": _points(history, "moe/max_load_ratio"),
        "idlest expert": _points(history, "moe/min_load_ratio"),
    }
    plots = {
        "Loss": line_chart(losses, "Loss", "step", "nats per token", levels),
        "Gradient norm": line_chart(norm, "Gradient norm", "step", "norm", log_y=True),
        "Throughput": line_chart(speed, "Throughput", "step", "tokens per second"),
        "Learning rate": line_chart(rate, "Learning rate", "step", "rate"),
    }
    if routers["busiest expert"][0]:
        plots["Expert load"] = line_chart(
            routers, "Expert load, worst layer", "step", "fair shares", {"balanced": 1.0}
        )
    return plots


def router_table(history: Sequence[Row]) -> dict[str, list[dict[str, float]]]:
    """What the routers of every layer did at the end, the means of the last steps, as a table."""
    rows = []
    while f"moe/layer_{len(rows)}/{ROUTER_COLUMNS[0]}" in history[-1]:
        layer = len(rows)
        means = {
            name: round(_mean_of_last(history, f"moe/layer_{layer}/{name}"), 4)
            for name in ROUTER_COLUMNS
        }
        rows.append({"layer": layer, **means})
    return {"Routers": rows} if rows else {}


def tracker_note(url: str | None) -> dict[str, str]:
    """A link to the run's page at Weights & Biases, as a note."""
    return {"Weights & Biases": f"[the run]({url})"} if url else {}


def _flops(history: Sequence[Row], config: ModelConfig, vocab_size: int) -> float:
    """Training FLOPs of the steps, each at the context that it had."""
    steps = collections.Counter(row.get("mixture/context", config.seq_len) for row in history)
    per_step = history[-1]["tokens"] / history[-1]["step"]
    return sum(
        dataclasses.replace(config, seq_len=context).flops_per_token(vocab_size) * per_step * count
        for context, count in steps.items()
    )


def _points(history: Sequence[Row], key: str) -> tuple[list[float], list[float]]:
    rows = [row for row in history if key in row]
    return [row["step"] for row in rows], [row[key] for row in rows]


def _mean_of_last(history: Sequence[Row], key: str, share: float = 0.05) -> float:
    size = max(1, int(len(history) * share))
    return statistics.fmean(row[key] for row in history[-size:])


def _rounded(value: float) -> float:
    return round(value, 5)
