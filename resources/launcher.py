"""Where training and evaluation run: a launcher, watched through Dagster Pipes."""

import dataclasses
import sys
import time
from dataclasses import dataclass
from functools import partial
from typing import Any

import dagster as dg

from marin_dagster.environment import read_environment
from marin_dagster.launch.base import Job, JobState, Launcher
from marin_dagster.launch.local import LocalLauncher
from marin_dagster.launch.worker import extras_for
from marin_dagster.memory import available_memory
from marin_dagster.recipe import Devices, Recipe, StageError, Summary
from marin_dagster.store import BuildContext, Store
from resources.messages import FileMessages, Inbox

POLL_SECONDS = 0.2
STACKS_SECONDS = 1.0  # a worker that hangs has this long to write where

# glibc gives big buffers back to the kernel and faults them in again on every step; these settings
# keep them, in huge pages, which shortens a training step on the CPU and leaves fewer holes.
CPU_MEMORY = {
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TOP_PAD_": str(256 * 2**20),
    "MALLOC_TRIM_THRESHOLD_": str(16 * 2**30),
}


class LauncherResource(dg.ConfigurableResource):
    """Runs a recipe in a worker process on this machine.

    `timeout_seconds` limits a worker's wall time; a worker from which no message has come for
    `hang_seconds` is ended after it wrote its stacks. Neither is limited by default. `mesh` is
    the shape of the devices' mesh, as data=4,expert=2.
    """

    grace_seconds: float = 8.0
    timeout_seconds: float | None = None
    hang_seconds: float | None = None
    mesh: str | None = None

    def devices(self) -> Devices:
        """How models are laid over devices: by the environment, and `mesh` where it is set."""
        found = read_environment().placement.devices
        return found if self.mesh is None else dataclasses.replace(found, mesh=self.mesh)

    def checkpoint_roots(self) -> tuple[str, ...]:
        """Where resume points are kept beside the work folder, by MARIN_CHECKPOINT_ROOTS."""
        return read_environment().placement.checkpoint_roots

    def launcher(self) -> Launcher:
        return LocalLauncher(grace_seconds=self.grace_seconds)

    def run(self, context: dg.AssetExecutionContext, build: BuildContext) -> Summary:
        """Runs `build.recipe` through a launcher and returns its summary.

        Success takes a worker that ended well and that had sent its summary. Whatever ends this
        call, nothing of the job is left running.
        """
        recipe, attempt = build.recipe, build.attempt
        _refuse_too_large(recipe)
        inbox = Inbox(build, partial(report_published, context.instance, build.store))
        base = f"{build.work}/attempt-{attempt.info.number:04d}"
        reader = FileMessages(f"{base}.messages", inbox)
        launcher = self.launcher()
        with dg.open_pipes_session(
            context=context,
            context_injector=dg.PipesTempFileContextInjector(),
            message_reader=reader,
            extras=extras_for(build),
        ) as session:
            job = Job(
                name=f"{recipe.stage}-{recipe.name}",
                command=[sys.executable, "-m", "marin_dagster.launch.worker"],
                environment={**CPU_MEMORY, **session.get_bootstrap_env_vars()},
                logs=f"{base}.logs",
            )
            if missing := launcher.preflight(job):
                raise StageError("bad_input", f"{recipe.address}: {'; '.join(missing)}")
            handle = launcher.submit(job)
            watch = _Watch(launcher, handle, inbox, self._limits())
            try:
                while not (state := launcher.state(handle)).done:
                    attempt.alive()
                    reader.drain()
                    watch.check(recipe.address)
                    time.sleep(POLL_SECONDS)
            finally:
                launcher.cancel(handle)
                for line in launcher.logs(handle):
                    attempt.log(line)
            reader.drain(last=True)
            session.get_results()
        return _summary(recipe.address, state, inbox, launcher.logs(handle, lines=15))

    def _limits(self) -> "_Limits":
        found = read_environment()
        return _Limits(
            timeout_seconds=self.timeout_seconds or found.timeout_seconds,
            hang_seconds=self.hang_seconds or found.hang_seconds,
        )


@dataclass(frozen=True, kw_only=True)
class _Limits:
    timeout_seconds: float | None
    hang_seconds: float | None


class _Watch:
    """Ends a worker that takes too long or that has gone silent."""

    def __init__(self, launcher: Launcher, handle: Any, inbox: Inbox, limits: _Limits):
        self._launcher, self._handle, self._inbox = launcher, handle, inbox
        self._limits = limits
        self._started = self._heard = time.monotonic()
        self._count = 0

    def check(self, address: str) -> None:
        """Raises StageError for a limit that is exceeded."""
        now = time.monotonic()
        if self._inbox.count > self._count:
            self._count, self._heard = self._inbox.count, now
        limit = self._limits.timeout_seconds
        if limit and now - self._started > limit:
            raise StageError(
                "timeout",
                f"the worker of {address} ran for more than {limit:g} s; raise "
                "MARIN_TIMEOUT_SECONDS and build it again, it goes on from its last resume point",
                {"limit_seconds": limit, "seconds": round(now - self._started, 1)},
            )
        limit = self._limits.hang_seconds
        if limit and now - self._heard > limit:
            self._launcher.dump_stacks(self._handle)
            time.sleep(STACKS_SECONDS)
            raise StageError(
                "hang",
                f"no message came from the worker of {address} for {limit:g} s; the stacks of its "
                "threads are in the log; if it was at work, raise MARIN_HANG_SECONDS",
                {"limit_seconds": limit, "silent_seconds": round(now - self._heard, 1)},
            )


def _refuse_too_large(recipe: Recipe) -> None:
    """Raises StageError for a recipe that this machine cannot hold, before anything starts."""
    needed, available = recipe.memory(), available_memory()
    if available is not None and needed > available:
        raise StageError(
            "bad_input",
            f"{recipe.address} needs at least {needed / 2**30:.3g} GiB of memory for weights, "
            f"gradients and moments, and this machine has {available / 2**30:.3g} GiB available; "
            "use a machine with more, or a smaller model",
            {"needed_bytes": needed, "available_bytes": available},
        )


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
    if inbox.failure is not None and state.reason in (None, "error", inbox.failure.reason):
        raise StageError(
            inbox.failure.reason,
            inbox.failure.message,
            {**state.evidence, **inbox.failure.evidence},
        )
    if not state.succeeded or inbox.summary is None:
        what = ", ".join(f"{name} {value}" for name, value in state.evidence.items())
        raise StageError(
            state.reason or "error",
            f"the worker of {address} ended without a result "
            f"({what or 'exit code 0, but no summary'}); its last lines:\n" + "\n".join(tail),
            state.evidence or {"exit_code": 0},
        )
    return inbox.summary
