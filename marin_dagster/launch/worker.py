"""Turns a recipe into files on the host that a launcher chose.

Runs as `python -m marin_dagster.launch.worker`.
The recipe, the folders and the placement arrive through Dagster Pipes; progress, log lines and
the summary go back the same way, each message with a number, so that the other side can tell
what it has and what it lacks. The supervisor there commits the artifact.
"""

import base64
import contextlib
import dataclasses
import faulthandler
import pickle
import signal
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from typing import Any

from dagster_pipes import PipesContext, open_dagster_pipes

from marin_dagster.context import BuildContext
from marin_dagster.failure import evidence_of, exit_code_of, message_of, reason_of
from marin_dagster.process import die_with_parent
from marin_dagster.recipe import Placement, Recipe, StageError, Summary
from marin_dagster.record import Record, plain_summary
from marin_dagster.store import Store
from marin_dagster.termination import termination

PROGRESS_SECONDS = 0.5  # at most one progress message in this time
CUT_SECONDS = 60.0  # how long the last messages wait for a transport that is cut


def extras_for(build: BuildContext) -> dict[str, str]:
    """What a worker needs to know, as Pipes extras; its inputs are those of the supervisor."""
    pack = {
        "recipe": build.recipe,
        "prefix": build.store.prefix,
        "out": build.out,
        "work": build.work,
        "placement": build.placement,
        "inputs": {address: record for address, (record, _) in build.inputs.items()},
    }
    return {"marin": base64.b64encode(pickle.dumps(pack)).decode()}


class Sender:
    """Sends numbered messages, in order; what cannot be written now is sent with the next one.

    As a context manager it also sends how the build failed, if it does, and waits at the end for
    a transport that is cut.
    """

    def __init__(self, pipes: PipesContext):
        self._pipes = pipes
        self._lock = threading.Lock()  # the tracker speaks from a thread of its own
        self._sent = 0
        self._waiting: list[dict[str, Any]] = []

    def send(self, kind: str, **body: Any) -> None:
        with self._lock:
            self._sent += 1
            self._waiting.append({"kind": kind, "number": self._sent, **body})
            with contextlib.suppress(OSError):
                self._flush()

    def fail(self, reason: str, message: str, evidence: Mapping[str, Any]) -> None:
        self.send("failure", reason=reason, message=message, evidence=dict(evidence))

    def __enter__(self) -> "Sender":
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self.fail(reason_of(error), message_of(error), evidence_of(error))
        deadline = time.monotonic() + CUT_SECONDS
        while self._waiting and time.monotonic() < deadline:
            time.sleep(PROGRESS_SECONDS)
            with contextlib.suppress(OSError):
                self._flush()

    def _flush(self) -> None:
        while self._waiting:
            self._pipes.report_custom_message(self._waiting[0])
            self._waiting.pop(0)


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
        inputs: Mapping[str, Record],
        sender: Sender,
    ):
        self.recipe = recipe
        self._inputs = inputs
        self.out = out
        self.work = work
        self.placement = placement
        self._store = Store(prefix)
        self._sender = sender
        self._last_progress = 0.0

    def path(self, recipe: Recipe) -> str:
        return self._store.localize(recipe, self._input(recipe))

    def result(self, recipe: Recipe) -> Mapping[str, Any]:
        return self._input(recipe).summary.numbers

    def record(self, recipe: Recipe) -> Record:
        if recipe.address in self._inputs:
            return self._inputs[recipe.address]
        return self._store.read_input(recipe)[0]  # further upstream

    def progress(
        self, done: float, total: float | None = None, unit: str = "documents", **metrics: float
    ) -> None:
        now = time.monotonic()
        if now - self._last_progress < PROGRESS_SECONDS and done != total:
            return
        self._last_progress = now
        numbers = {name: float(value) for name, value in metrics.items()}
        self._sender.send("progress", done=done, total=total, unit=unit, metrics=numbers)

    def log(self, message: str) -> None:
        self._sender.send("log", message=message)

    def publish(self, recipe: Recipe, folder: str, summary: Summary) -> None:
        """Asks the supervisor to commit the folder; it does so before it takes the summary."""
        body = summary_body(recipe, summary)
        self._sender.send("publish", address=recipe.address, folder=folder, summary=body)

    def _input(self, recipe: Recipe) -> Record:
        if recipe.address not in self._inputs:
            raise StageError(
                "error", f"{self.recipe.address} reads {recipe.address}, which is not a field of it"
            )
        return self._inputs[recipe.address]


def main() -> int:
    """Builds the one recipe that Pipes names; ends well only if a summary was sent.

    Returns the exit status: 0 done, 75 preempted, 124 stalled, 1 for other failures.
    """
    die_with_parent()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    try:
        with open_dagster_pipes() as pipes, Sender(pipes) as sender:
            termination.listen(sender.fail)
            job = pickle.loads(base64.b64decode(pipes.extras["marin"]))
            context = WorkerContext(**job, sender=sender)
            summary = context.recipe.build(context)
            sender.send("summary", summary=summary_body(context.recipe, summary))
    except StageError as error:
        traceback.print_exc()
        return exit_code_of(error)
    return 0


def summary_body(recipe: Recipe, summary: Summary) -> dict[str, Any]:
    """A summary as JSON values, plots included."""
    plain = dataclasses.asdict(plain_summary(recipe.address, summary))
    return {**plain, "plots": dict(summary.plots)}


if __name__ == "__main__":
    sys.exit(main())
