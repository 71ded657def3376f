"""Turns a step of a training run into a model of its own, which is there while the run goes on."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from marin_dagster.kinds import Checkpoint
from marin_dagster.recipe import Context, Recipe, StageError, Summary


@dataclass(frozen=True, kw_only=True)
class Snapshot(Checkpoint):
    """The model of `run` after `step` steps, one of its `snapshots`.

    The run publishes it when it reaches the step. Make it by `snapshot_of`.
    """

    stage: ClassVar[str] = "snapshots"

    run: Checkpoint
    step: int

    def __post_init__(self) -> None:
        super().__post_init__()
        steps = getattr(self.run, "snapshots", ())
        if self.step not in steps:
            raise ValueError(
                f"step={self.step} of {self.address} is not among snapshots={steps} of "
                f"{self.run.address}; add it there"
            )
        if (self.name, self.version) != (_name(self.run, self.step), self.run.version):
            raise ValueError(
                f"{self.address} is not named after its run and step; use "
                f"snapshot_of(run, step), which gives {_name(self.run, self.step)}"
                f"@{self.run.version}"
            )

    @property
    def made_by(self) -> Recipe:
        return self.run

    def cost(self, sizes: Mapping[str, int]) -> dict[str, float]:
        return {}  # the run's

    def build(self, ctx: Context) -> Summary:
        raise StageError(
            "bad_input",
            f"{self.address} is not there, and is made only by {self.run.address} when it reaches "
            f"step {self.step}; build it with `marin build {self.run.address} --run`, and with "
            "--force if that is complete",
        )


def snapshot_of(run: Checkpoint, step: int) -> Snapshot:
    """The recipe of a run's model after `step` steps."""
    return Snapshot(name=_name(run, step), version=run.version, run=run, step=step)


def check_snapshots(steps: tuple[int, ...], num_steps: int) -> None:
    """Raises ValueError for steps that do not rise, or are not within the run."""
    for before, step in zip((0, *steps), steps, strict=False):
        if not before < step < num_steps:
            raise ValueError(
                f"snapshots={steps} has {step} after {before}; give rising steps above 0 and below "
                f"num_steps={num_steps}, whose model is the checkpoint itself"
            )


def _name(run: Checkpoint, step: int) -> str:
    return f"{run.name}.step-{step}"
