"""Turns rows of metrics into a run at Weights & Biases, which may fail or hang without harm."""

import os
import queue
import threading
from collections.abc import Callable, Mapping
from typing import Any

Row = Mapping[str, Any]
WANDB_FOLDER = ".wandb"  # of an artifact; beside its files
INIT_SECONDS = 60
FINISH_SECONDS = 30.0  # how long the end of a training waits for the last rows to be sent


class WandbMirror:
    """Copies rows to Weights & Biases from a thread of its own, so that training never waits.

    Every attempt is a run of its own, and those of one artifact are a group: a curve that resumes
    from an earlier step overlaps the one before it, and no point is dropped. The first failure is
    one line for `say`, and then the mirror is silent.
    """

    def __init__(
        self,
        mode: str,
        folder: str,
        address: str,
        attempt: int,
        config: Mapping[str, Any],
        say: Callable[[str], None],
        finish_seconds: float = FINISH_SECONDS,
    ):
        self.url: str | None = None  # of the run's page, once it has one; there is none offline
        self._say = say
        self._finish_seconds = finish_seconds
        self._rows: queue.SimpleQueue[Row | None] = queue.SimpleQueue()
        self._thread = threading.Thread(
            target=self._mirror,
            args=(
                {
                    "project": "marin-dagster",
                    "group": address,
                    "name": f"{address} attempt {attempt}",
                    "config": {**config, "attempt": attempt},
                    "dir": folder,
                    "mode": "online" if mode == "online" else "offline",
                },
            ),
            daemon=True,
            name="marin-wandb",
        )
        if mode != "disabled":
            os.makedirs(folder, exist_ok=True)
            self._thread.start()

    def log(self, row: Row) -> None:
        """Hands a row over."""
        if self._thread.is_alive():
            self._rows.put(row)

    def finish(self) -> None:
        """Ends the run; waits a while for what was not sent yet."""
        if not self._thread.is_alive():
            return
        self._rows.put(None)
        self._thread.join(self._finish_seconds)
        if self._thread.is_alive():
            self._say(
                f"warning: Weights & Biases did not end within {self._finish_seconds:.0f} s; its "
                "last rows are in metrics.jsonl alone"
            )

    def _mirror(self, run_settings: dict[str, Any]) -> None:
        try:
            import wandb

            settings = wandb.Settings(silent=True, init_timeout=INIT_SECONDS, console="off")
            run = wandb.init(**run_settings, settings=settings)
            self.url = run.url
            if self.url:
                self._say(f"Weights & Biases: {self.url}")
            for row in iter(self._rows.get, None):
                numbers = {key: value for key, value in row.items() if not isinstance(value, list)}
                run.log(numbers, step=row["step"])
            run.finish()
        except Exception as error:  # noqa: BLE001 (a mirror stops nothing)
            self._say(
                f"warning: Weights & Biases has failed: {type(error).__name__}: {error}; training "
                "goes on, and its rows are in metrics.jsonl"
            )
