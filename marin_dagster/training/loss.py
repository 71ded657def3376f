"""Turns hidden states and targets into the loss, without ever holding all logits.

Shapes: T tokens, D hidden, V vocabulary, C tokens of one chunk.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

CHUNK = 1024  # tokens whose logits exist at once


class Loss(NamedTuple):
    """Means over weighted tokens, in nats."""

    loss: Array  # cross entropy + z_loss_weight · z_loss: what is minimised
    cross_entropy: Array
    z_loss: Array  # mean of log² of the softmax's normaliser


def token_loss(
    hidden: Float[Array, "B S D"],
    head: Float[Array, "D V"],
    targets: Int[Array, "B S"],
    weights: Float[Array, "B S"],
    z_loss_weight: float = 0.0,
) -> Loss:
    """Computes cross entropy through the head, chunk by chunk, weighted by `weights`.

    The gradients of the head and of the hidden states are made in the same pass (only `loss`
    has one), so logits are computed once and freed. Sums are divided once, by the total weight,
    so that the result does not depend on how rows are split.
    """
    tokens = targets.size
    chunk = min(CHUNK, tokens)
    short = -tokens % chunk
    flat = jnp.pad(hidden.reshape(tokens, -1), ((0, short), (0, 0)))
    targets = jnp.pad(targets.reshape(-1), (0, short))
    weights = weights / jnp.maximum(weights.sum(), 1e-9)
    weights = jnp.pad(weights.reshape(-1), (0, short))
    shape = (-1, chunk)
    sums: Any = _chunked(
        flat.reshape(*shape, flat.shape[-1]),
        head,
        targets.reshape(shape),
        weights.reshape(shape),
        z_loss_weight,
    )
    return Loss(sums[0], *map(jax.lax.stop_gradient, sums[1:]))


def _logits(hidden: Float[Array, "C D"], head: Float[Array, "D V"], targets: Int[Array, " C"]):
    """Returns logits, their log-sum-exp and each target's negative log-likelihood."""
    logits = (hidden @ head).astype(jnp.float32)
    log_sum = jax.nn.logsumexp(logits, axis=-1)
    right = jnp.take_along_axis(logits, targets[:, None], axis=-1)[:, 0]
    return logits, log_sum, log_sum - right


@functools.partial(jax.custom_vjp, nondiff_argnums=(4,))
def _chunked(hidden, head, targets, weights, z_loss_weight):
    def add(sums, chunk):
        chunk_hidden, chunk_targets, chunk_weights = chunk
        _, log_sum, nll = _logits(chunk_hidden, head, chunk_targets)
        return sums + jnp.stack([nll @ chunk_weights, log_sum**2 @ chunk_weights]), None

    sums, _ = jax.lax.scan(add, jnp.zeros(2), (hidden, targets, weights))
    return sums[0] + z_loss_weight * sums[1], sums[0], sums[1]


def _chunked_forward(hidden, head, targets, weights, z_loss_weight):
    def add(carry, chunk):
        sums, grad_head = carry
        chunk_hidden, chunk_targets, chunk_weights = chunk
        logits, log_sum, nll = _logits(chunk_hidden, head, chunk_targets)
        scale = chunk_weights * (1 + 2 * z_loss_weight * log_sum)
        grad = jnp.exp(logits - log_sum[:, None]) * scale[:, None]
        rows = jnp.arange(chunk_targets.shape[0])
        grad = grad.at[rows, chunk_targets].add(-chunk_weights, unique_indices=True)
        grad = grad.astype(head.dtype)
        sums = sums + jnp.stack([nll @ chunk_weights, log_sum**2 @ chunk_weights])
        return (sums, grad_head + chunk_hidden.T @ grad), grad @ head.T

    start = (jnp.zeros(2), jnp.zeros_like(head))
    (sums, grad_head), grad_hidden = jax.lax.scan(add, start, (hidden, targets, weights))
    out = (sums[0] + z_loss_weight * sums[1], sums[0], sums[1])
    return out, (grad_hidden, grad_head)


def _chunked_backward(z_loss_weight, residuals, cotangents):
    grad_hidden, grad_head = residuals
    scale = cotangents[0]
    return grad_hidden * scale, grad_head * scale, None, None


_chunked.defvjp(_chunked_forward, _chunked_backward)
