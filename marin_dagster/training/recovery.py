"""Turns trouble on the way into a rule: which updates are skipped, when to go back, when to end.

The values are fields of recipes, so this module imports no jax.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Recovery:
    """What a training does about losses and gradient norms that leap or are not finite.

    An update whose loss or gradient norm is not finite, or lies more than `sigma` standard
    deviations over the mean of the last `window` accepted steps, is skipped. After `max_skips` in
    a row the run goes back to the newest resume point before the first of them and passes over the
    data read since. After `max_rollbacks` of those it ends as diverged.
    """

    window: int = 128  # steps
    min_samples: int = 64  # accepted steps before a leap is one
    sigma: float = 6.0
    max_skips: int = 8  # in a row
    max_rollbacks: int = 3  # in the whole run

    def __post_init__(self) -> None:
        if not 2 <= self.min_samples <= self.window:
            raise ValueError(
                f"min_samples={self.min_samples} is not between 2 and window={self.window}; a mean "
                "and a deviation need samples that the window can hold"
            )
        if not self.sigma > 0:
            raise ValueError(
                f"sigma={self.sigma} is not positive, so every second step would be skipped; "
                "6 skips only what is far out"
            )
        if self.max_skips < 1 or self.max_rollbacks < 0:
            raise ValueError(
                f"max_skips={self.max_skips} is below 1, or max_rollbacks={self.max_rollbacks} "
                "below 0; use recovery=None to end at the first bad step"
            )


@dataclass(frozen=True, kw_only=True)
class KeepEvery:
    """A range of steps whose resume points are permanent: every `every` steps up to `until`."""

    every: int  # steps
    until: int | None = None  # step; None: to the end

    def __post_init__(self) -> None:
        for name, value in (("every", self.every), ("until", self.until)):
            if value is not None and value < 1:
                raise ValueError(f"{name}={value} of KeepEvery is below 1; give a number of steps")


def is_permanent(step: int, ranges: Sequence[KeepEvery]) -> bool:
    """Whether the point of a step is kept: the first range that reaches it decides."""
    for part in ranges:
        if part.until is None or step <= part.until:
            return step % part.every == 0
    return False


def check_ranges(ranges: Sequence[KeepEvery]) -> None:
    """Raises ValueError for a range that no step gets to."""
    reached = 0
    for part in ranges:
        if reached is None or (part.until is not None and part.until <= reached):
            raise ValueError(
                f"{part} comes after a range that ends at {reached or 'the end of the run'}, so no "
                "step gets to it; order the ranges by `until`, and let only the last have none"
            )
        reached = part.until


@dataclass
class Standing:
    """Where a run is in its data and its troubles; saved beside every resume point."""

    data_offset: int = 0  # data steps passed over: step s reads the batch s + data_offset
    skips: int = 0  # in a row, up to now
    first_skip: int | None = None  # step of the first of them
    total_skips: int = 0
    rollbacks: int = 0
    batch_shape: list[int] | None = None  # rows, tokens per row; a change is a phase change
    branch: int = 0  # the attempt that began with the last rollback

    def note(self, step: int, skipped: bool) -> None:
        """Counts the step with this number in."""
        if not skipped:
            self.skips, self.first_skip = 0, None
            return
        self.skips, self.total_skips = self.skips + 1, self.total_skips + 1
        if self.first_skip is None:
            self.first_skip = step

    def went_back(self, reached: int, to: int, attempt: int) -> "Standing":
        """The standing after a rollback from step `reached` to `to`: new data from there on."""
        return Standing(
            data_offset=self.data_offset + reached - to,
            total_skips=self.total_skips,
            rollbacks=self.rollbacks + 1,
            batch_shape=self.batch_shape,
            branch=attempt,
        )
