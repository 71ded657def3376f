"""Turns the steps of a plan into runs of their own, side by side in processes where they can be."""

import functools
import multiprocessing
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any

import dagster as dg
from dagster._core.utils import make_new_run_id

from assets import progress
from marin_dagster.experiments import find
from marin_dagster.failure import MESSAGE_CHARACTERS
from marin_dagster.process import die_with_parent
from marin_dagster.recipe import Recipe
from resources import RESOURCES

STOP_SECONDS = 12.0  # for a step that was interrupted; a training writes its last state

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class StepRun:
    """One artifact to build in a run of its own."""

    address: str
    tags: Mapping[str, str] = field(default_factory=dict)
    loggers: Any = field(default_factory=dict)
    run_id: str = field(default_factory=make_new_run_id)


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """How the run of one artifact ended; `failure` is None when it went well."""

    address: str
    run_id: str
    seconds: float
    failure: str | None


def run_steps(
    instance: dg.DagsterInstance, steps: list[StepRun], *, slots: int, workers: int, say: Say
) -> Iterator[StepResult]:
    """Runs each step once its inputs among them are made; yields how each ended.

    Up to `slots` steps run at once, each in a process of its own: threads would deadlock on the
    SQLite event log. They share the `workers` processes of data stages. After a failure nothing
    more is started, and what runs is waited for.
    """
    slots = slots if instance.is_persistent else 1  # another process could not see the instance
    total, started = len(steps), 0
    waiting = {step.address: step for step in steps}
    pool = _Pool(instance, max(1, workers // slots))
    failed = False
    try:
        while pool.busy or (waiting and not failed):
            ready = [] if failed else _ready(waiting, pool.running)
            results = []
            alone = len(ready) == 1 and not pool.busy
            for step in ready[: 1 if slots == 1 else slots - len(pool.busy)]:
                started += 1
                del waiting[step.address]
                say(f"[{started}/{total}] {step.address}")
                if slots == 1 or alone:
                    results.append(run_step(instance, step))
                else:
                    pool.start(step)
            for result in results or pool.wait():
                failed = failed or result.failure is not None
                yield result
    finally:
        pool.close()


def run_step(instance: dg.DagsterInstance, step: StepRun) -> StepResult:
    """Runs one step in this process."""
    recipe = find(step.address)
    started = time.monotonic()
    result = _stages_job().execute_in_process(
        instance=instance,
        run_id=step.run_id,
        asset_selection=[dg.AssetKey(recipe.stage)],
        partition_key=recipe.key,
        raise_on_error=False,
        tags=dict(step.tags),
        run_config={"loggers": dict(step.loggers)},
    )
    return StepResult(
        address=step.address,
        run_id=result.run_id,
        seconds=round(time.monotonic() - started, 1),
        failure=None if result.success else _why(result),
    )


def _ready(waiting: Mapping[str, StepRun], running: set[str]) -> list[StepRun]:
    unmade = waiting.keys() | running
    return [step for key, step in waiting.items() if not unmade & _addresses(find(key).needs)]


def _addresses(recipes: tuple[Recipe, ...]) -> set[str]:
    return {recipe.address for recipe in recipes}


class _Pool:
    """Processes that run steps; started when they are needed, and used again."""

    def __init__(self, instance: dg.DagsterInstance, workers: int):
        self._instance = instance
        self._workers = workers
        self._idle: list[_Worker] = []
        self.busy: dict[Connection, tuple[_Worker, StepRun]] = {}

    @property
    def running(self) -> set[str]:
        return {step.address for _, step in self.busy.values()}

    def start(self, step: StepRun) -> None:
        worker = self._idle.pop() if self._idle else _Worker(self._instance, self._workers)
        worker.connection.send(step)
        self.busy[worker.connection] = worker, step

    def wait(self) -> Iterator[StepResult]:
        """Yields the results that come next, at least one, and passes progress on."""
        found = []
        while not found:
            ready = wait(list(self.busy))
            for connection in [item for item in self.busy if item in ready]:
                worker, step = self.busy[connection]
                try:
                    message = connection.recv()
                except (EOFError, OSError):
                    del self.busy[connection]
                    found.append(self._lost(worker, step))
                    continue
                if isinstance(message, StepResult):
                    del self.busy[connection]
                    self._idle.append(worker)
                    found.append(message)
                else:
                    progress.tell(f"{step.address}: {message}")
        yield from found

    def _lost(self, worker: "_Worker", step: StepRun) -> StepResult:
        """What is left to say of a step whose process ended."""
        why = worker.end()
        run = self._instance.get_run_by_id(step.run_id)
        if run is not None and not run.is_finished:
            self._instance.report_run_failed(run, f"the process of this run {why}")
        return StepResult(
            address=step.address,
            run_id=step.run_id,
            seconds=0.0,
            failure=f"killed: the process of its run {why}",
        )

    def close(self) -> None:
        """Ends all processes: idle ones at once, busy ones after they put their work away."""
        busy = [worker for worker, _ in self.busy.values()]
        for worker in busy:
            worker.interrupt()
        deadline = time.monotonic() + STOP_SECONDS
        for worker in [*self._idle, *busy]:
            worker.connection.close()
            worker.process.join(max(0.1, deadline - time.monotonic()))
            worker.end()


class _Worker:
    """A process that runs one step after the other."""

    def __init__(self, instance: dg.DagsterInstance, workers: int):
        spawn = multiprocessing.get_context("spawn")
        self.connection, theirs = spawn.Pipe()
        what = (theirs, instance.get_ref(), workers, sys.orig_argv)
        self.process = spawn.Process(target=_serve, args=what)
        self.process.start()
        theirs.close()

    def interrupt(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.process.pid or 0, signal.SIGINT)

    def end(self) -> str:
        """Makes sure that the process is gone; returns how it ended."""
        self.process.join(0.5)
        if self.process.exitcode is None:
            self.process.kill()
            self.process.join()
        code = self.process.exitcode or 0
        return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"


def _serve(connection: Connection, ref: Any, workers: int, command: list[str]) -> None:
    """The life of a worker process."""
    sys.orig_argv = command  # records name what a person has typed
    os.setsid()  # Ctrl-C in a terminal reaches the parent alone, which ends its workers in order
    die_with_parent()
    warnings.filterwarnings("ignore")
    os.environ["MARIN_WORKERS"] = str(workers)
    progress.listen(_Relay(connection))
    with (
        suppress(EOFError, ConnectionError, KeyboardInterrupt),
        dg.DagsterInstance.from_ref(ref) as instance,
    ):
        while True:
            connection.send(run_step(instance, connection.recv()))


class _Relay:
    """Sends progress to the parent, as long as it listens."""

    def __init__(self, connection: Connection):
        self._connection = connection

    def progress(self, line: str) -> None:
        with suppress(ConnectionError):
            self._connection.send(line)

    def event(self, line: str) -> None:
        with suppress(ConnectionError):
            self._connection.send(line)


@functools.lru_cache(maxsize=1)
def _stages_job() -> dg.JobDefinition:
    """The job over the stages alone; a definitions object cannot be reached from within a run."""
    from assets import STAGES

    stages = dg.Definitions(assets=STAGES, resources=RESOURCES, executor=dg.in_process_executor)
    return stages.resolve_implicit_global_asset_job_def()


def _why(result: dg.ExecuteInProcessResult) -> str:
    """The failure's own words, without the frames around them."""
    for event in result.get_step_failure_events():
        data = event.step_failure_data
        failed = data.user_failure_data
        if failed is not None and failed.description:
            return failed.description
        error = data.error
        if error is not None and error.cls_name == "DagsterExecutionInterruptedError":
            return "interrupted; build again to go on from its last resume point"
        if error is not None:
            own = error.cause or error  # without Dagster's wrapper
            return own.message.strip()[:MESSAGE_CHARACTERS]
    return "see the log of its run"
