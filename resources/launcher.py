"""Where training and evaluation run: a launcher, watched through Dagster Pipes."""

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import dagster as dg

from marin_dagster.launch.base import Job, JobState, Launcher
from marin_dagster.launch.local import LocalLauncher
from marin_dagster.launch.worker import extras_for
from marin_dagster.recipe import Recipe, StageError, Summary
from marin_dagster.record import summary_from
from marin_dagster.store import BuildContext, Store

POLL_SECONDS = 0.2

# glibc gives big buffers back to the kernel and faults them in again on every step; these
# settings keep them, which shortens a training step on the CPU.
CPU_MEMORY = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TOP_PAD_": str(256 * 2**20),
    "MALLOC_TRIM_THRESHOLD_": str(16 * 2**30),
}


class FileMessages(dg.PipesMessageReader):
    """Reads the messages of a worker from a file, whenever `drain` is called.

    Custom messages are handed over as they come; Dagster's own reader keeps them to the end.
    """

    def __init__(self, path: str, inbox: "Inbox"):
        self._path = path
        self._inbox = inbox
        self._offset = 0
        self._handler: Any = None

    @contextmanager
    def read_messages(self, handler) -> Iterator[dict[str, Any]]:
        self._handler = handler
        Path(self._path).write_text("")
        try:
            yield {"path": self._path}
        finally:
            self.drain()
            Path(self._path).unlink(missing_ok=True)

    def drain(self) -> None:
        """Handles every whole line that was written since the last call."""
        with open(self._path, encoding="utf-8") as file:
            file.seek(self._offset)
            lines = file.readlines()
        for line in lines:
            if not line.endswith("\n"):
                return
            self._offset += len(line.encode())
            message = json.loads(line)
            if message["method"] == "report_custom_message":
                self._inbox.receive(message["params"]["payload"])
            else:
                self._handler.handle_message(message)

    def no_messages_debug_text(self) -> str:
        return f"Attempted to read messages of the worker from {self._path}."


class Inbox:
    """What a worker has said so far."""

    def __init__(self, build: BuildContext, published: Callable[[Recipe], None]):
        self._build = build
        self._published = published
        self.summary: Summary | None = None
        self.failure: tuple[str, str] | None = None

    def receive(self, body: dict[str, Any]) -> None:
        kind = body["kind"]
        if kind == "progress":
            self._build.progress(body["done"], body["total"], body["unit"], **body["metrics"])
        elif kind == "log":
            self._build.log(body["message"])
        elif kind == "failure":
            self.failure = (body["reason"], body["message"])
        elif kind == "publish":
            made = {item.address: item for item in self._build.recipe.makes}[body["address"]]
            self._build.publish(made, body["folder"], summary_from(body["summary"]))
            self._published(made)
        elif kind == "summary":
            self.summary = summary_from(body["summary"])


class LauncherResource(dg.ConfigurableResource):
    """Runs a recipe in a worker process on this machine."""

    grace_seconds: float = 10.0

    def launcher(self) -> Launcher:
        return LocalLauncher(grace_seconds=self.grace_seconds)

    def run(self, context: dg.AssetExecutionContext, build: BuildContext) -> Summary:
        """Runs `build.recipe` through a launcher and returns its summary.

        Success takes a worker that ended well and that had sent its summary. Whatever ends this
        call, nothing of the job is left running.
        """
        recipe, attempt = build.recipe, build.attempt
        inbox = Inbox(build, partial(report_published, context.instance, build.store))
        base = f"{build.work}/attempt-{attempt.info.number:04d}"
        reader = FileMessages(f"{base}.messages", inbox)
        launcher = self.launcher()
        with dg.open_pipes_session(
            context=context,
            context_injector=dg.PipesTempFileContextInjector(),
            message_reader=reader,
            extras=extras_for(recipe, build.store, build.out, build.work, build.placement),
        ) as session:
            handle = launcher.submit(
                Job(
                    name=f"{recipe.stage}-{recipe.name}",
                    command=[sys.executable, "-m", "marin_dagster.launch.worker"],
                    environment={**CPU_MEMORY, **session.get_bootstrap_env_vars()},
                    log=f"{base}.log",
                )
            )
            try:
                state = launcher.state(handle)
                while not state.done:
                    attempt.alive()
                    reader.drain()
                    time.sleep(POLL_SECONDS)
                    state = launcher.state(handle)
            finally:
                launcher.cancel(handle)
            reader.drain()
            session.get_results()
        for line in launcher.logs(handle):
            attempt.log(line)
        return _summary(recipe.address, state, inbox, launcher.logs(handle, lines=15))


def report_published(instance: dg.DagsterInstance, store: Store, recipe: Recipe) -> None:
    """Shows an artifact that a run made on its way: no step materializes its partition."""
    record = store.record(recipe)
    assert record is not None
    instance.report_runless_asset_event(
        dg.AssetMaterialization(
            recipe.stage,
            partition=recipe.key,
            metadata={
                **record.summary.numbers,
                "path": dg.MetadataValue.path(store.data_url(recipe, record)),
            },
            tags={"dagster/data_version": record.digest},
        )
    )


def _summary(address: str, state: JobState, inbox: Inbox, tail: list[str]) -> Summary:
    if inbox.failure is not None:
        raise StageError(*inbox.failure)
    if not state.succeeded or inbox.summary is None:
        raise StageError(
            state.reason or "error",
            f"the worker of {address} ended without a result ({state.evidence or 'no summary'}); "
            "its last lines:\n" + "\n".join(tail),
        )
    return inbox.summary
