"""Turns the course of a run into values: where its context and batch change, and its data.

Neither changes the order of the data: a phase of shorter rows cuts the same blocks of tokens, and a
stage reads on in every source where the stage before stopped.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from marin_dagster.kinds import TokenCache


@dataclass(frozen=True, kw_only=True)
class Phase:
    """A stretch of steps with one context and batch; give `from_step` or `from_fraction`."""

    seq_len: int  # tokens per row
    batch_size: int  # rows
    from_step: int | None = None
    from_fraction: float | None = None  # of the run's steps

    def __post_init__(self) -> None:
        for name in ("seq_len", "batch_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} is below 1; give a positive number")
        _check_start(self.from_step, self.from_fraction)

    @property
    def tokens_per_step(self) -> int:
        return self.seq_len * self.batch_size


@dataclass(frozen=True, kw_only=True)
class Phases:
    """The context and batch of every step, at a constant number of tokens per step.

    Raises ValueError for phases of other tokens per step, for contexts that do not divide the
    longest, and unless the first phase begins at step 0.
    """

    phases: tuple[Phase, ...]

    def __post_init__(self) -> None:
        if not self.phases:
            raise ValueError("phases=() is empty; give at least one phase, from_step=0")
        first = self.phases[0]
        if (first.from_step or first.from_fraction or 0) != 0:
            raise ValueError(
                f"the first phase begins at {first.from_step or first.from_fraction}; let it begin "
                "with from_step=0"
            )
        for phase in self.phases:
            if phase.tokens_per_step != first.tokens_per_step:
                raise ValueError(
                    f"seq_len={phase.seq_len} with batch_size={phase.batch_size} makes "
                    f"{phase.tokens_per_step} tokens per step, the first phase "
                    f"{first.tokens_per_step}; schedules count steps, so keep the product"
                )
            if self.longest % phase.seq_len:
                raise ValueError(
                    f"seq_len={phase.seq_len} does not divide the longest context {self.longest}, "
                    "whose rows it cuts; give a divisor"
                )

    @property
    def longest(self) -> int:
        """The longest context, in tokens."""
        return max(phase.seq_len for phase in self.phases)

    @property
    def tokens_per_step(self) -> int:
        return self.phases[0].tokens_per_step

    def starts(self, num_steps: int) -> list[int]:
        """The first step of every phase of a run. Raises ValueError when a phase has no step."""
        return _starts(self.phases, num_steps, "phase")

    def phase_at(self, step: int, num_steps: int) -> Phase:
        """The phase of a step, counted from 0."""
        pairs = list(zip(self.starts(num_steps), self.phases, strict=True))
        return next(phase for start, phase in reversed(pairs) if start <= step)


@dataclass(frozen=True, kw_only=True)
class Stage:
    """Another mixture from some step on; give `from_step` or `from_fraction`."""

    data: tuple[tuple[TokenCache, float], ...]  # caches and their weights, from then on
    from_step: int | None = None
    from_fraction: float | None = None  # of the run's steps

    def __post_init__(self) -> None:
        _check_start(self.from_step, self.from_fraction)


def stage_starts(stages: Sequence[Stage], num_steps: int) -> list[int]:
    """The first step of every stage after the first mixture of a run.

    Raises ValueError when a stage, or the mixture before, has no step.
    """
    return _starts((Stage(data=(), from_step=0), *stages), num_steps, "stage")[1:]


def _starts(items: Sequence[Phase | Stage], num_steps: int, what: str) -> list[int]:
    found: list[int] = []
    for item in items:
        fraction = item.from_fraction
        step = item.from_step if fraction is None else round(fraction * num_steps)
        assert step is not None
        if found and step <= found[-1]:
            raise ValueError(
                f"a {what} begins at step {step}, not after the one before at {found[-1]}; order "
                f"them, and give each a step of num_steps={num_steps}"
            )
        if step >= num_steps:
            raise ValueError(
                f"a {what} begins at step {step}, which a run of num_steps={num_steps} has not; "
                "let it begin earlier or train longer"
            )
        found.append(step)
    return found


def _check_start(from_step: int | None, from_fraction: float | None) -> None:
    if (from_step is None) == (from_fraction is None):
        raise ValueError(
            f"from_step={from_step} and from_fraction={from_fraction}: give exactly one of them"
        )
    if from_step is not None and from_step < 0:
        raise ValueError(f"from_step={from_step} is negative; steps count from 0")
    if from_fraction is not None and not 0 <= from_fraction < 1:
        raise ValueError(
            f"from_fraction={from_fraction} is outside 0 to 1; it is a share of the run's steps"
        )
