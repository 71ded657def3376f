"""Turns a loss and a gradient norm into a verdict, on the device: keep the update, or skip it.

Shapes: W steps in the window.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from marin_dagster.training.recovery import Recovery

FLAT = 1e-3  # of the mean: the least deviation, so that noise on a flat curve is no leap


class Guard(NamedTuple):
    """The losses and gradient norms of the last accepted steps."""

    losses: Float[Array, " W"]
    grad_norms: Float[Array, " W"]
    accepted: Int[Array, ""]  # steps since the window was emptied


def empty_guard(recovery: Recovery) -> Guard:
    """A window without steps."""
    zeros = jnp.zeros(recovery.window, jnp.float32)
    return Guard(zeros, jnp.zeros_like(zeros), jnp.zeros((), jnp.int32))


def judge(
    guard: Guard, loss: Float[Array, ""], grad_norm: Float[Array, ""], recovery: Recovery
) -> tuple[Bool[Array, ""], Guard]:
    """Says whether to skip an update, and takes the step into the window if it is not skipped.

    What is not finite is always skipped; a leap over mean + sigma * deviation of the window is,
    once there are `min_samples` steps in it. Neither moves the window, so a spike does not raise
    the limit for the next one.
    """
    size = jnp.minimum(guard.accepted, recovery.window)
    enough = size >= recovery.min_samples
    leap = (loss > _limit(guard.losses, size, recovery.sigma)) | (
        grad_norm > _limit(guard.grad_norms, size, recovery.sigma)
    )
    skip = ~(jnp.isfinite(loss) & jnp.isfinite(grad_norm)) | (enough & leap)
    place = guard.accepted % recovery.window
    taken = Guard(
        guard.losses.at[place].set(jnp.where(skip, guard.losses[place], loss)),
        guard.grad_norms.at[place].set(jnp.where(skip, guard.grad_norms[place], grad_norm)),
        guard.accepted + jnp.where(skip, 0, 1),
    )
    return skip, taken


def _limit(values: Float[Array, " W"], size: Int[Array, ""], sigma: float) -> Float[Array, ""]:
    """Mean + sigma deviations of the first `size` values."""
    within = jnp.arange(values.shape[0]) < size
    count = jnp.maximum(size, 1)
    mean = jnp.where(within, values, 0).sum() / count
    variance = jnp.where(within, (values - mean) ** 2, 0).sum() / count
    return mean + sigma * jnp.maximum(jnp.sqrt(variance), FLAT * jnp.abs(mean))
