"""Turns a step into the share of the peak learning rate: schedules as values."""

from dataclasses import dataclass
from typing import Any, Literal, get_args


@dataclass(frozen=True, kw_only=True)
class WarmupStableDecay:
    """Linear warm-up, then the peak, then a linear fall over the last `decay_steps`."""

    warmup_steps: int
    decay_steps: int
    final_ratio: float = 0.0  # of the peak, at the last step

    def __post_init__(self) -> None:
        _check(self.warmup_steps, self.final_ratio)
        if self.decay_steps < 1:
            raise ValueError(
                f"decay_steps={self.decay_steps} is below 1; the rate has to come down, give a "
                "positive number"
            )

    def ratio(self, step: Any, num_steps: int) -> Any:
        """The share at `step`, 0 to 1; `step` may be a traced array."""
        left = _clip((num_steps - step) / self.decay_steps)
        return _warmup(step, self.warmup_steps) * _mix(left, self.final_ratio)


@dataclass(frozen=True, kw_only=True)
class Linear:
    """Linear warm-up, then a straight line down to the last step."""

    warmup_steps: int
    final_ratio: float = 0.0

    def __post_init__(self) -> None:
        _check(self.warmup_steps, self.final_ratio)

    def ratio(self, step: Any, num_steps: int) -> Any:
        """The share at `step`, 0 to 1; `step` may be a traced array."""
        left = _clip((num_steps - step) / max(num_steps - self.warmup_steps, 1))
        return _warmup(step, self.warmup_steps) * _mix(left, self.final_ratio)


@dataclass(frozen=True, kw_only=True)
class Cosine:
    """Linear warm-up, then half a cosine down to the last step (Loshchilov and Hutter 2017)."""

    warmup_steps: int
    final_ratio: float = 0.1

    def __post_init__(self) -> None:
        _check(self.warmup_steps, self.final_ratio)

    def ratio(self, step: Any, num_steps: int) -> Any:
        """The share at `step`, 0 to 1; `step` may be a traced array."""
        import jax.numpy as jnp

        left = _clip((num_steps - step) / max(num_steps - self.warmup_steps, 1))
        half = 0.5 - 0.5 * jnp.cos(jnp.pi * left)
        return _warmup(step, self.warmup_steps) * _mix(half, self.final_ratio)


Policy = Literal["keep", "rewarm", "decay"]


@dataclass(frozen=True, kw_only=True)
class Extension:
    """The schedule of a run that was planned shorter and goes on in a declared way from step `at`.

    keep: the planned curve, and its last value after its end. rewarm: a straight line, over
    `rewarm_steps`, to the curve that `schedule` has over the longer run. decay: a straight line
    from the rate at `at` to `final_ratio` at the last step. None jumps at `at`.
    """

    schedule: "Schedule"  # of the run so far
    planned_steps: int  # of the run so far
    at: int  # first step that goes another way; at most the steps that are done
    policy: Policy
    rewarm_steps: int = 0
    final_ratio: float = 0.0  # of the peak, for decay

    def __post_init__(self) -> None:
        _check(0, self.final_ratio)
        if self.policy not in get_args(Policy):
            raise ValueError(
                f"policy={self.policy!r} is not one of {', '.join(get_args(Policy))}; choose how "
                "the learning rate goes on"
            )
        if not 0 < self.at <= self.planned_steps:
            raise ValueError(
                f"at={self.at} is outside 1 to planned_steps={self.planned_steps}; give a step "
                "that the run has reached"
            )
        if (self.policy == "rewarm") != (self.rewarm_steps > 0):
            raise ValueError(
                f"rewarm_steps={self.rewarm_steps} with policy={self.policy!r}; give a positive "
                "number for rewarm, and none otherwise"
            )
        ended = self.policy == "keep" or (self.policy == "decay" and self.at == self.planned_steps)
        if ended and _end(self.schedule) == 0:
            raise ValueError(
                f"policy={self.policy!r} goes on at a learning rate of 0, with which the run of "
                f"planned_steps={self.planned_steps} ends; choose rewarm, or decay from an earlier "
                "step"
            )

    def ratio(self, step: Any, num_steps: int) -> Any:
        """The share at `step`, 0 to 1; `step` may be a traced array."""
        import jax.numpy as jnp

        planned = self.schedule.ratio(step, self.planned_steps)
        if self.policy == "keep":
            return planned
        joined = self.schedule.ratio(self.at, self.planned_steps)
        if self.policy == "rewarm":
            share = _clip((step - self.at) / self.rewarm_steps)
            onward = (1 - share) * joined + share * self.schedule.ratio(step, num_steps)
        else:
            share = _clip((step - self.at) / max(num_steps - self.at, 1))
            onward = (1 - share) * joined + share * self.final_ratio
        return jnp.where(step < self.at, planned, onward)


Schedule = WarmupStableDecay | Linear | Cosine | Extension


def _end(schedule: Schedule) -> float:
    """The share of the peak at the end of a run."""
    if isinstance(schedule, Extension) and schedule.policy != "decay":
        return _end(schedule.schedule)
    return schedule.final_ratio


def _check(warmup_steps: int, final_ratio: float) -> None:
    if warmup_steps < 0:
        raise ValueError(f"warmup_steps={warmup_steps} is negative; use 0 for no warm-up")
    if not 0 <= final_ratio <= 1:
        raise ValueError(
            f"final_ratio={final_ratio} is outside 0 to 1; it is a share of the peak learning rate"
        )


def _warmup(step: Any, warmup_steps: int) -> Any:
    return _clip((step + 1) / warmup_steps) if warmup_steps else 1.0


def _mix(share: Any, final_ratio: float) -> Any:
    return final_ratio + (1 - final_ratio) * share


def _clip(value: Any) -> Any:
    import jax.numpy as jnp

    return jnp.clip(value, 0.0, 1.0)
