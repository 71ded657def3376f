"""Turns what a run measures and meets into one time line, which a tracker mirrors."""

import math
import os
from collections.abc import Mapping
from typing import Any

from marin_dagster.recipe import Context
from marin_dagster.training.metrics import MetricsLog, Row, read_metrics
from marin_dagster.training.tracker import WANDB_FOLDER, WandbMirror

METRICS = "metrics.jsonl"
TOLERANCE = 1e-3  # of a loss: beyond it a resumed run is not the one that was logged


class Timeline:
    """The rows and events of a run, under the number of the attempt that they belong to."""

    def __init__(self, ctx: Context):
        self._ctx = ctx
        self.path = os.path.join(ctx.work, METRICS)
        self.logged = {row["step"]: row for row in read_metrics(self.path)}  # by earlier attempts
        self._log = MetricsLog(self.path)
        self._mirror: WandbMirror | None = None
        self.url: str | None = None
        self.last: Row = {}  # of this attempt

    @property
    def attempt(self) -> int:
        return self._log.attempt

    @property
    def reached(self) -> int:
        """The last step that any attempt before has logged."""
        return max(self.logged, default=0)

    def begin(self, attempt: int) -> None:
        """Starts an attempt, with a curve of its own at the tracker."""
        self._log.attempt = max(attempt, self._log.attempt)
        self._mirror = WandbMirror(
            self._ctx.placement.wandb_mode,
            os.path.join(self._ctx.out, WANDB_FOLDER),  # beside the files: it names this host
            self._ctx.recipe.address,
            self._log.attempt,
            self._ctx.recipe.payload,
            self._ctx.log,
        )

    def branch(self) -> int:
        """Ends the attempt and starts the next one, which replaces the steps that it repeats."""
        self._finish()
        self.begin(self._log.attempt + 1)
        return self.attempt

    def row(self, step: int, metrics: Mapping[str, float]) -> None:
        self.last = self._log.write(step, metrics)
        self._copy(self.last)

    def event(self, step: int, event: str, **facts: Any) -> None:
        self._copy(self._log.event(step, event, **facts))

    def close(self) -> None:
        self._log.close()
        self._finish()

    def compare(self, step: int, loss: float, since_attempt: int) -> None:
        """Tells how far the first loss after a resume is from the one logged for this step.

        Rows of attempts before `since_attempt` were computed on other data.
        """
        row = self.logged.get(step)
        if row is None or row["attempt"] < since_attempt:
            return
        logged = row["train/loss"]
        difference = loss - logged
        self.event(step, "resume_loss", loss=loss, logged_loss=logged, difference=difference)
        if not abs(difference) <= TOLERANCE * max(1.0, abs(logged)) and math.isfinite(logged):
            self._ctx.log(
                f"alarm: loss {loss:.6g} of step {step} differs by {difference:.2g} from "
                f"{logged:.6g}, which attempt {row['attempt']} logged; the state, the data or the "
                "code is not the same"
            )

    def _copy(self, row: Row) -> None:
        if self._mirror is not None:
            self._mirror.log(row)

    def _finish(self) -> None:
        if self._mirror is not None:
            self._mirror.finish()
            self.url = self._mirror.url or self.url
