"""Turns runs whose worker is gone into runs that say so: a sensor, and `marin reconcile`.

A worker that is killed cannot say that it ended, nor can a machine. Whoever looks later can: the
run names its process, and the attempt in the store has a heartbeat. Only what that shows is
written; a worker on another host that is silent is unknown, not dead.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import dagster as dg
from dagster._core.events import EngineEventData
from dagster._core.storage.runs.sqlite.sqlite_run_storage import SqliteRunStorage
from dagster._core.storage.tags import GRPC_INFO_TAG, RUN_FAILURE_REASON_TAG

from marin_dagster.attempt import RUNNING, AttemptInfo
from marin_dagster.experiments import catalog
from marin_dagster.process import process_exists
from marin_dagster.recipe import Recipe
from marin_dagster.store import Store
from resources import StoreResource
from resources.workers import REASON_TAG, Worker, clock, note_reason

SECONDS = 15  # between two looks of the sensor
LOOK_BACK = timedelta(hours=1)  # for failed runs without a reason
UNNAMED_SECONDS = 10.0  # a run has that long to name its worker
UNENDED_SECONDS = 120.0  # and that long to end after its attempt
HEALTHY = "every run is what it says"
OPEN = [dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING]
STEP_FAILURE, START_TIMEOUT = "STEP_FAILURE", "START_TIMEOUT"  # Dagster's own reasons


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What is known of one run that does not answer. `reason` is None if that is unknown."""

    run: dg.DagsterRun
    text: str
    reason: str | None = None
    evidence: dict[str, Any]


@dg.sensor(
    name="reconcile",
    minimum_interval_seconds=SECONDS,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description=(
        "Ends runs whose worker was killed or whose machine died, with the reason and what it "
        "rests on, and gives back their places in pools. Starts nothing; without open runs it "
        "costs two small queries."
    ),
)
def reconcile_sensor(context: dg.SensorEvaluationContext, store: StoreResource) -> dg.SkipReason:
    found = reconcile(context.instance, store.open())
    return dg.SkipReason("; ".join(finding.text for finding in found) or HEALTHY)


def reconcile(instance: dg.DagsterInstance, store: Store) -> list[Finding]:
    """Ends every open run whose worker is gone, and gives failed runs the reason that they lack.

    Returns what it has corrected, and what is unknown.
    """
    found = []
    for finding in _of_open_runs(instance, store):
        found.append(finding)
        if finding.reason is not None:
            _end(instance, finding.run, finding)
    for finding in _of_failed_runs(instance, store):
        found.append(finding)
        _write(instance, finding)
    return found


def _of_open_runs(instance: dg.DagsterInstance, store: Store) -> Iterator[Finding]:
    for record in instance.get_run_records(dg.RunsFilter(statuses=OPEN)):
        run = record.dagster_run
        attempt = _attempt_of(store, run)
        worker = Worker.of(run)
        if worker is not None:
            lives = worker.process.lives()
        else:
            began = record.start_time or record.create_timestamp.timestamp()
            lives = time.time() - began < UNNAMED_SECONDS or _process_lives(instance, run)
        if lives is False:
            yield _gone(store, run, worker, attempt)
        elif lives is None and attempt is not None:
            finding = _elsewhere(store, run, attempt)
            if finding is not None:
                yield finding


def _of_failed_runs(instance: dg.DagsterInstance, store: Store) -> Iterator[Finding]:
    """A killed worker whose parent lives is noticed by that, which cannot say why."""
    since = dg.RunsFilter(
        statuses=[dg.DagsterRunStatus.FAILURE],
        updated_after=datetime.now(UTC) - LOOK_BACK,
    )
    for record in instance.get_run_records(since):
        run = record.dagster_run
        if run.tags.get(REASON_TAG):
            continue
        dagster_reason = run.tags.get(RUN_FAILURE_REASON_TAG)
        worker = Worker.of(run)
        if dagster_reason == START_TIMEOUT:
            yield Finding(run=run, text="it did not start in time", reason="timeout", evidence={})
        elif worker is not None and worker.process.lives() is False and not dagster_reason:
            yield _gone(store, run, worker, _attempt_of(store, run))
        else:
            yield Finding(
                run=run,
                text="it failed outside of any build, as its events say",
                reason="error",
                evidence={"dagster": dagster_reason or "unknown"},
            )


def _gone(
    store: Store, run: dg.DagsterRun, worker: Worker | None, attempt: AttemptInfo | None
) -> Finding:
    reason, evidence = worker.why_gone() if worker else ("killed", {})
    text = f"run {run.run_id}: its worker"
    if worker is not None:
        text += f", process {worker.process.pid} on {worker.process.host},"
    text += " ended without a word"
    if attempt is not None:
        evidence |= _evidence(store, run, attempt)
        text += f"; last seen {clock(attempt.heartbeat)}"
    return Finding(run=run, text=f"{text}: {reason}", reason=reason, evidence=evidence)


def _elsewhere(store: Store, run: dg.DagsterRun, attempt: AttemptInfo) -> Finding | None:
    """Judges by the store a run whose process cannot be seen from here."""
    evidence = _evidence(store, run, attempt)
    who = f"run {run.run_id}: its worker on {attempt.host}"
    if attempt.ended is not None and time.time() - attempt.ended > UNENDED_SECONDS:
        text = f"{who} ended attempt {attempt.number} at {clock(attempt.ended)}, but not the run"
        reason = attempt.reason or "killed"
        return Finding(run=run, text=f"{text}: {reason}", reason=reason, evidence=evidence)
    if attempt.state == RUNNING and store.is_silent(attempt):
        text = f"{who} is unknown since {clock(attempt.heartbeat)}, when it was last seen"
        return Finding(run=run, text=text, evidence=evidence)
    return None


def _end(instance: dg.DagsterInstance, run: dg.DagsterRun, finding: Finding) -> None:
    current = instance.get_run_by_id(run.run_id)
    if current is None or current.status not in OPEN:  # it has ended meanwhile
        return
    _write(instance, finding)
    if current.status == dg.DagsterRunStatus.CANCELING:
        instance.report_run_canceled(current, finding.text)
    else:
        instance.report_run_failed(current, finding.text)
    if instance.event_log_storage.supports_global_concurrency_limits:
        instance.event_log_storage.free_concurrency_slots_for_run(run.run_id)


def _write(instance: dg.DagsterInstance, finding: Finding) -> None:
    """Writes reason and evidence on the run: as an event to read, then as a tag to find it by."""
    assert finding.reason is not None
    metadata = {"reason": dg.MetadataValue.text(finding.reason)} | {
        name: dg.MetadataValue.text(str(value)) for name, value in finding.evidence.items()
    }
    instance.report_engine_event(finding.text, finding.run, EngineEventData(metadata=metadata))
    note_reason(instance, finding.run, finding.reason)


def _evidence(store: Store, run: dg.DagsterRun, attempt: AttemptInfo) -> dict[str, Any]:
    recipe = _recipe_of(run)
    assert recipe is not None
    return {
        "attempt": attempt.number,
        "last_seen": clock(attempt.heartbeat),
        "log_file": store.log_url(recipe, attempt.number),
        "log": "\n".join(store.log_tail(recipe, attempt.number)),
    }


def _attempt_of(store: Store, run: dg.DagsterRun) -> AttemptInfo | None:
    """The last attempt that this run itself has made."""
    recipe = _recipe_of(run)
    own = [info for info in store.attempts(recipe) if info.run_id == run.run_id] if recipe else []
    return own[-1] if own else None


def _recipe_of(run: dg.DagsterRun) -> Recipe | None:
    stages = [key.path[-1] for key in run.asset_selection or ()]
    partition = run.tags.get("dagster/partition")
    return catalog().get(f"{stages[0]}/{partition}") if len(stages) == 1 else None


def _process_lives(instance: dg.DagsterInstance, run: dg.DagsterRun) -> bool | None:
    """Looks for the process that Dagster's own events name, if it must be one of this host.

    That is so behind a local socket, and where the history is SQLite, which has no other hosts.
    """
    grpc = run.tags.get(GRPC_INFO_TAG)
    here = "socket" in grpc if grpc else isinstance(instance.run_storage, SqliteRunStorage)
    if not here:
        return None
    for entry in reversed(instance.all_logs(run.run_id, of_type=dg.DagsterEventType.ENGINE_EVENT)):
        event = entry.dagster_event
        pid = event.engine_event_data.metadata.get("pid") if event else None
        if pid is not None:
            return process_exists(int(str(pid.value)))
    return None
