"""Turns a step into the share of the peak learning rate: schedules as values."""

from dataclasses import dataclass
from typing import Any


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


Schedule = WarmupStableDecay | Linear | Cosine


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
