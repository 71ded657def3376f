"""Turns the numbers of a run into an append-only file, and the file into one row per step.

The file is the truth; Weights & Biases mirrors it and may fail without harm.
"""

import json
import os
import warnings
from collections.abc import Mapping
from typing import Any

Row = dict[str, Any]


class MetricsLog:
    """Appends rows to `metrics.jsonl`, each with the number of the attempt that wrote it."""

    def __init__(self, path: str):
        self.path = path
        rows = _rows(path)
        self.attempt = 1 + max((row["attempt"] for row in rows), default=0)
        _end_with_newline(path)
        self._file = open(path, "a", encoding="utf-8")  # noqa: SIM115 (closed by close())

    def write(self, step: int, metrics: Mapping[str, float]) -> Row:
        """Appends one row for the state after `step` steps and flushes it."""
        row = {"attempt": self.attempt, "step": step, **metrics}
        self._file.write(json.dumps(row) + "\n")
        self._file.flush()
        return row

    def close(self) -> None:
        self._file.close()


def read_metrics(path: str) -> list[Row]:
    """Reads the surviving history: each step once, the last attempt that reached it wins.

    Rows of an attempt that a later one overtook from an earlier step are dropped.
    """
    history: list[Row] = []
    for row in _rows(path):
        while history and history[-1]["step"] >= row["step"]:
            history.pop()
        history.append(row)
    return history


def _rows(path: str) -> list[Row]:
    if not os.path.exists(path):
        return []
    rows = []
    with open(path, encoding="utf-8") as file:
        for line in file:
            if not line.endswith("\n"):
                break  # a killed attempt stopped within this line
            try:
                rows.append(json.loads(line))
            except json.JSONDecodeError:
                continue  # the same, and a later attempt ended the line
    return rows


def _end_with_newline(path: str) -> None:
    if os.path.exists(path) and os.path.getsize(path):
        with open(path, "rb+") as file:
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                file.write(b"\n")


class WandbMirror:
    """Copies rows to Weights & Biases; the first failure is a warning, and then it is silent."""

    def __init__(self, mode: str, folder: str, name: str, config: Mapping[str, Any]):
        self._run = None
        if mode == "disabled":
            return
        import wandb

        os.makedirs(folder, exist_ok=True)
        try:
            self._run = wandb.init(
                project="marin-dagster",
                name=name,
                config=dict(config),
                dir=folder,
                mode="online" if mode == "online" else "offline",
                settings=wandb.Settings(silent=True, init_timeout=30, console="off"),
            )
        except (wandb.Error, OSError, TimeoutError) as error:
            self._give_up(error)

    def log(self, row: Row) -> None:
        if self._run is None:
            return
        import wandb

        try:
            self._run.log(row, step=row["step"])
        except (wandb.Error, OSError) as error:
            self._give_up(error)

    def finish(self) -> None:
        if self._run is None:
            return
        import wandb

        try:
            self._run.finish()
        except (wandb.Error, OSError) as error:
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        self._run = None
        warnings.warn(f"Weights & Biases is not reached: {error}; training goes on", stacklevel=3)
