"""Turns a Dagster run into what is known of its worker: where it runs, whether it lives, why not.

Tags of a run: `marin/worker` names the process that executes it, `marin/reason` says why it did
not succeed.
"""

import dataclasses
import json
import time
from dataclasses import dataclass
from typing import Any

import dagster as dg
from dagster._core.execution.backfill import BulkActionStatus
from dagster._core.storage.tags import BACKFILL_ID_TAG, MAX_RETRIES_TAG

from marin_dagster.failure import RETRIES
from marin_dagster.memory import oom_kills
from marin_dagster.process import ProcessId

WORKER_TAG = "marin/worker"
REASON_TAG = "marin/reason"
CANCELLED_BACKFILL = (BulkActionStatus.CANCELING, BulkActionStatus.CANCELED)


@dataclass(frozen=True, kw_only=True)
class Worker:
    """The process that executes a run, as it described itself when it began."""

    process: ProcessId
    oom_kills: int  # of its control group

    @classmethod
    def of(cls, run: dg.DagsterRun) -> "Worker | None":
        """What the run says; a run that was started again inherits tags, which are not its own."""
        found = json.loads(run.tags.get(WORKER_TAG, "{}"))
        if found.get("run") != run.run_id:
            return None
        return cls(process=ProcessId(**found["process"]), oom_kills=found["oom_kills"])

    def why_gone(self) -> tuple[str, dict[str, Any]]:
        """The reason and the evidence for a worker that ended without a word."""
        found: dict[str, Any] = {"host": self.process.host, "pid": self.process.pid}
        rose = oom_kills() - self.oom_kills
        return ("oom", {**found, "oom_kills": rose}) if rose > 0 else ("killed", found)


def note_worker(context: dg.OpExecutionContext | dg.AssetExecutionContext) -> None:
    """Writes on a run which process executes it."""
    worker = dataclasses.asdict(Worker(process=ProcessId.own(), oom_kills=oom_kills()))
    tags = {WORKER_TAG: json.dumps({"run": context.run_id, **worker})}
    if REASON_TAG in context.run.tags:  # of the run that this one tries again
        tags[REASON_TAG] = ""
    context.instance.add_run_tags(context.run_id, tags)


def note_reason(instance: dg.DagsterInstance, run: dg.DagsterRun, reason: str) -> None:
    """Writes on a run why it did not succeed; a run that somebody cancels says so.

    The daemon starts a crashed run again, but not for every reason, and not in a backfill that was
    cancelled.
    """
    backfill = instance.get_backfill(run.tags.get(BACKFILL_ID_TAG, ""))
    cancelled = backfill is not None and backfill.status in CANCELLED_BACKFILL
    never = {MAX_RETRIES_TAG: "0"} if cancelled or not RETRIES[reason].times else {}
    instance.add_run_tags(run.run_id, {REASON_TAG: reason, **never})
    current = instance.get_run_by_id(run.run_id)
    assert current is not None
    if reason == "user_cancel" and current.status == dg.DagsterRunStatus.STARTED:
        instance.report_run_canceling(current)


def clock(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
