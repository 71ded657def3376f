"""Turns an attempt into what a build works with: folders, inputs, progress, log."""

import os
import shutil
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from marin_dagster import record as records
from marin_dagster.attempt import SUCCEEDED, Attempt, AttemptInfo, attempts_of
from marin_dagster.code import code_digest
from marin_dagster.publish import publish
from marin_dagster.recipe import Placement, Recipe, StageError, Summary
from marin_dagster.record import Record

if TYPE_CHECKING:
    from marin_dagster.store import Store

READ_SECONDS = 86_400.0  # whoever had begun to read a replaced artifact has that long

Progress = Callable[[float, float | None, str, Mapping[str, float]], None]
Log = Callable[[str], None]


class BuildContext:
    """What a build gets when it runs through a store; see `recipe.Context`."""

    def __init__(
        self,
        *,
        store: "Store",
        recipe: Recipe,
        inputs: Mapping[str, tuple[Record, str]],
        attempt: Attempt,
        placement: Placement,
        on_progress: Progress | None,
        on_log: Log | None,
    ):
        self.store = store
        self.recipe = recipe
        self.inputs = inputs  # as they were at the start: a rebuild of one meanwhile is not read
        self.attempt = attempt
        self.placement = placement
        self._on_progress = on_progress
        self._on_log = on_log
        folder = store.folder(recipe)
        number = f"{attempt.info.number:04d}"
        self._clear_leftovers(folder)
        identity = f"{recipe.fingerprint}-{code_digest(recipe)}"  # what resume may trust
        if store.storage.local:
            self.out = store.storage.full(f"{folder}/{number}")
            self.work = store.storage.full(f"{folder}/.work/{identity}")
        else:
            name = f"{number}-{attempt.info.token[:8]}"
            self.out = os.path.join(store.cache, "out", folder, name)
            self.work = os.path.join(store.cache, "work", folder, identity)
        os.makedirs(self.out, exist_ok=True)
        os.makedirs(self.work, exist_ok=True)

    def path(self, recipe: Recipe) -> str:
        return self._input(recipe)[1]

    def result(self, recipe: Recipe) -> Mapping[str, Any]:
        return self._input(recipe)[0].summary.numbers

    def record(self, recipe: Recipe) -> Record:
        if recipe.address in self.inputs:
            return self.inputs[recipe.address][0]
        return self.store.read_input(recipe)[0]  # further upstream

    def progress(
        self, done: float, total: float | None = None, unit: str = "documents", **metrics: float
    ) -> None:
        self.attempt.alive()
        if self._on_progress:
            self._on_progress(done, total, unit, metrics)

    def log(self, message: str) -> None:
        self.attempt.log(message)
        if self._on_log:
            self._on_log(message)

    def publish(self, recipe: Recipe, folder: str, summary: Summary) -> None:
        publish(self, recipe, folder, summary)

    def inputs_read(self) -> tuple[records.Input, ...]:
        """The inputs, with the digests of what was read."""
        return tuple(
            records.Input(address=address, digest=record.digest)
            for address, (record, _) in self.inputs.items()
        )

    def input_sizes(self) -> dict[str, int]:
        """Bytes of each input, by address."""
        return {address: record.size_bytes for address, (record, _) in self.inputs.items()}

    def close(self) -> None:
        """Removes the local copy of what was, or would have been, uploaded."""
        if not self.store.storage.local:
            shutil.rmtree(self.out, ignore_errors=True)

    def forget_work(self) -> None:
        """Removes what a later attempt would have resumed from."""
        shutil.rmtree(os.path.dirname(self.work), ignore_errors=True)

    def _input(self, recipe: Recipe) -> tuple[Record, str]:
        if recipe.address not in self.inputs:
            raise StageError(
                "error", f"{self.recipe.address} reads {recipe.address}, which is not a field of it"
            )
        return self.inputs[recipe.address]

    def _clear_leftovers(self, folder: str) -> None:
        """Removes the files of attempts that are over, but none that somebody may still read.

        An attempt that was buried on suspicion may live, and commit before this one does: its files
        stay until `marin gc`. So do those that a new version replaced a short while ago.
        """
        try:
            record = self.store.record(self.recipe)
        except StageError:  # whose files are the artifact's cannot be known
            return
        for info in attempts_of(self.store.storage, folder):
            if info.over and not still_read(info, record):
                self.store.storage.remove(f"{folder}/{info.number:04d}")


def still_read(info: AttemptInfo, record: Record | None) -> bool:
    """Whether the files of an attempt are the artifact's, or were until a short while ago."""
    if record is None or info.number == record.attempt:
        return record is not None
    return info.state == SUCCEEDED and time.time() - record.ended < READ_SECONDS
