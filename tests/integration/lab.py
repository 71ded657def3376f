"""Experiments for the tests of what runs by itself: one that recurs, one that trains for long."""

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

from marin_dagster.experiments.recurring import Recurrence
from marin_dagster.kinds import Checkpoint, EvalReport
from marin_dagster.recipe import Context, Recipe, Summary
from marin_dagster.training.snapshot import Snapshot, snapshot_of
from tests.toys import Joined, Upper, Words

GATE = "LAB_GATE"  # a file that the training waits for
GATE_SECONDS = 400
MISTAKE = "LAB_MISTAKE"  # LAB_MISTAKE_2: what goes wrong at step 2
FIRST, SECOND = "2026.01.01", "2026.01.02"


@dataclass(frozen=True, kw_only=True)
class Training(Checkpoint):
    """Writes its step, publishes its snapshots, and ends when somebody opens the gate."""

    stage: ClassVar[str] = "checkpoints"
    accelerated: ClassVar[bool] = True
    snapshots: tuple[int, ...] = ()

    @property
    def makes(self) -> tuple[Snapshot, ...]:
        return tuple(snapshot_of(self, step) for step in self.snapshots)

    def build(self, ctx: Context) -> Summary:
        for snapshot in self.makes:
            draft = Path(ctx.work, snapshot.key)
            draft.mkdir()
            (draft / "model.txt").write_text(f"{snapshot.step} {time.time_ns()}\n")
            mistake = os.environ.get(f"{MISTAKE}_{snapshot.step}")
            if mistake != "forget":
                ctx.publish(snapshot, str(draft), Summary(numbers={"steps": snapshot.step}))
            if mistake == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
        gate, started = os.environ.get(GATE), time.monotonic()
        while gate and not os.path.exists(gate):
            assert time.monotonic() - started < GATE_SECONDS
            ctx.progress(0, 1, "steps")
            time.sleep(0.1)
        Path(ctx.out, "model.txt").write_text("last\n")
        return Summary(numbers={})


@dataclass(frozen=True, kw_only=True)
class Score(EvalReport):
    """Writes what its model holds."""

    stage: ClassVar[str] = "evals"
    checkpoint: Checkpoint

    def build(self, ctx: Context) -> Summary:
        text = Path(ctx.path(self.checkpoint), "model.txt").read_text()
        Path(ctx.out, "score.txt").write_text(text)
        return Summary(numbers={"process": os.getpid()})


def rounds(version: str) -> tuple[Recipe, ...]:
    """Two lines of words; one of them is shared by all versions."""
    shared = Words(name="shared", version=FIRST, words=("shared",))
    own = Words(name="rounds", version=version, words=(version,))
    upper = Upper(name="rounds", version=version, documents=own)
    shared_upper = Upper(name="shared", version=FIRST, documents=shared, misbehave="slow")
    return (Joined(name="rounds", version=version, parts=(upper, shared_upper)),)


def live(version: str, **changes) -> tuple[Recipe, ...]:
    """A training with a snapshot at step 2, and the scores of both."""
    run = Training(name="live", version=version, snapshots=(2,), **changes)
    early = snapshot_of(run, 2)
    return (
        Score(name="live", version=version, checkpoint=run),
        Score(name=early.name, version=version, checkpoint=early),
    )


every_minute = SimpleNamespace(
    __name__="every_minute",
    VERSIONS=(FIRST, SECOND),
    RECURS=Recurrence(cron="* * * * *"),
    experiment=rounds,
)
training = SimpleNamespace(__name__="training", VERSIONS=("dev", FIRST), experiment=live)
