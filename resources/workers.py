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

from marin_dagster.memory import oom_kills
from marin_dagster.process import ProcessId

WORKER_TAG = "marin/worker"
REASON_TAG = "marin/reason"


@dataclass(frozen=True, kw_only=True)
class Worker:
    """The process that executes a run, as it described itself when it began."""

    process: ProcessId
    oom_kills: int  # of its control group

    @classmethod
    def of(cls, run: dg.DagsterRun) -> "Worker | None":
        text = run.tags.get(WORKER_TAG)
        if text is None:
            return None
        found = json.loads(text)
        return cls(process=ProcessId(**found["process"]), oom_kills=found["oom_kills"])

    def why_gone(self) -> tuple[str, dict[str, Any]]:
        """The reason and the evidence for a worker that ended without a word."""
        found: dict[str, Any] = {"host": self.process.host, "pid": self.process.pid}
        rose = oom_kills() - self.oom_kills
        return ("oom", {**found, "oom_kills": rose}) if rose > 0 else ("killed", found)


def note_worker(context: dg.OpExecutionContext | dg.AssetExecutionContext) -> None:
    """Writes on a run which process executes it."""
    worker = Worker(process=ProcessId.own(), oom_kills=oom_kills())
    text = json.dumps(dataclasses.asdict(worker))
    context.instance.add_run_tags(context.run_id, {WORKER_TAG: text})


def note_reason(instance: dg.DagsterInstance, run: dg.DagsterRun, reason: str) -> None:
    """Writes on a run why it did not succeed; a run that somebody cancels says so."""
    instance.add_run_tags(run.run_id, {REASON_TAG: reason})
    current = instance.get_run_by_id(run.run_id)
    assert current is not None
    if reason == "user_cancel" and current.status == dg.DagsterRunStatus.STARTED:
        instance.report_run_canceling(current)


def clock(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
