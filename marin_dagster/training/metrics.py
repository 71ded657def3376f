"""Turns the numbers of a run into an append-only file, and the file into one row per step.

The file is the truth; what else is shown of a run is a copy of it. Rows with the key `event` tell
what happened on the way, on the same time line: an attempt, a resume, a skipped update, a
rollback, a checkpoint, an evaluation, a new phase, a preemption.
"""

import json
import os
import threading
import time
from collections.abc import Mapping
from typing import Any

Row = dict[str, Any]


class MetricsLog:
    """Appends rows to `metrics.jsonl`, each with the number of the attempt that wrote it."""

    def __init__(self, path: str):
        self.path = path
        rows = _rows(path)
        self.attempt = 1 + max((row["attempt"] for row in rows), default=0)
        self._lock = threading.Lock()
        _end_with_newline(path)
        self._file = open(path, "a", encoding="utf-8")  # noqa: SIM115 (closed by close())

    def write(self, step: int, metrics: Mapping[str, float]) -> Row:
        """Appends one row for the state after `step` steps and flushes it."""
        return self._append({"attempt": self.attempt, "step": step, **metrics})

    def event(self, step: int, event: str, **facts: Any) -> Row:
        """Appends a row that says what happened after `step` steps."""
        row = {"attempt": self.attempt, "step": step, "event": event, "seconds": _now(), **facts}
        return self._append(row)

    def _append(self, row: Row) -> Row:
        with self._lock:
            self._file.write(json.dumps(row) + "\n")
            self._file.flush()
        return row

    def close(self) -> None:
        self._file.close()


def read_metrics(path: str) -> list[Row]:
    """Reads the surviving history: each step once, the last attempt that reached it wins.

    Rows of an attempt that a later one overtook from an earlier step are dropped, and so are
    events. A row without a loss adds to the row of its step.
    """
    history: list[Row] = []
    for row in _rows(path):
        if "event" in row:
            continue
        adds = "train/loss" not in row
        while history and history[-1]["step"] >= row["step"] + adds:
            history.pop()
        if not adds:
            history.append(row)
        elif history and history[-1]["step"] == row["step"]:
            history[-1] = {**row, **history[-1]}
    return history


def read_events(path: str) -> list[Row]:
    """Reads what happened, in the order in which it did, in all attempts."""
    return [row for row in _rows(path) if "event" in row]


def _now() -> float:
    return round(time.time(), 3)  # wall clock, since the epoch


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
