"""Turns a recipe into files on the host that a launcher chose.

Runs as `python -m marin_dagster.launch.worker`.
The recipe, the folders and the placement arrive through Dagster Pipes; progress, log lines and
the summary go back the same way. The supervisor on the other side commits the artifact.
"""

import base64
import dataclasses
import pickle
import signal
import sys
import time
from collections.abc import Mapping
from typing import Any

from dagster_pipes import PipesContext, open_dagster_pipes

from marin_dagster.process import die_with_parent
from marin_dagster.recipe import Placement, Recipe, StageError, Summary
from marin_dagster.record import Record, plain_summary
from marin_dagster.store import Store

PROGRESS_SECONDS = 0.5  # at most one progress message in this time


def extras_for(recipe: Recipe, store: Store, out: str, work: str, placement: Placement) -> dict:
    """What a worker needs to know, as Pipes extras."""
    pack = {"recipe": recipe, "prefix": store.prefix, "out": out, "work": work}
    content = pickle.dumps({**pack, "placement": placement})
    return {"marin": base64.b64encode(content).decode()}


class WorkerContext:
    """What a build gets in a worker; see `recipe.Context`."""

    def __init__(
        self,
        *,
        recipe: Recipe,
        prefix: str,
        out: str,
        work: str,
        placement: Placement,
        pipes: PipesContext,
    ):
        self.recipe = recipe
        self.out = out
        self.work = work
        self.placement = placement
        self._store = Store(prefix)
        self._pipes = pipes
        self._last_progress = 0.0

    def path(self, recipe: Recipe) -> str:
        return self._store.read_input(recipe)[1]

    def result(self, recipe: Recipe) -> Mapping[str, Any]:
        return self._store.read_input(recipe)[0].summary.numbers

    def record(self, recipe: Recipe) -> Record:
        return self._store.read_input(recipe)[0]

    def progress(
        self, done: float, total: float | None = None, unit: str = "documents", **metrics: float
    ) -> None:
        now = time.monotonic()
        if now - self._last_progress < PROGRESS_SECONDS and done != total:
            return
        self._last_progress = now
        numbers = {name: float(value) for name, value in metrics.items()}
        body = {"kind": "progress", "done": done, "total": total, "unit": unit, "metrics": numbers}
        self._pipes.report_custom_message(body)

    def log(self, message: str) -> None:
        self._pipes.report_custom_message({"kind": "log", "message": message})

    def publish(self, recipe: Recipe, folder: str, summary: Summary) -> None:
        """Asks the supervisor to commit the folder; it does so before it takes the summary."""
        what = {"kind": "publish", "address": recipe.address, "folder": folder}
        self._pipes.report_custom_message({**what, "summary": summary_body(recipe, summary)})


def main() -> int:
    """Builds the one recipe that Pipes names; the exit code is 0 when a summary was sent."""
    die_with_parent()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with open_dagster_pipes() as pipes:
        job = pickle.loads(base64.b64decode(pipes.extras["marin"]))
        context = WorkerContext(**job, pipes=pipes)
        try:
            summary = context.recipe.build(context)
        except StageError as error:
            pipes.report_custom_message(
                {"kind": "failure", "reason": error.reason, "message": error.message}
            )
            return 1
        body = summary_body(context.recipe, summary)
        pipes.report_custom_message({"kind": "summary", "summary": body})
    return 0


def summary_body(recipe: Recipe, summary: Summary) -> dict[str, Any]:
    """A summary as JSON values, plots included."""
    plain = dataclasses.asdict(plain_summary(recipe.address, summary))
    return {**plain, "plots": dict(summary.plots)}


if __name__ == "__main__":
    sys.exit(main())
