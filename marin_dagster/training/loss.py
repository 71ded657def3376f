"""Turns hidden states and targets into the loss, without ever holding all logits.

Shapes: B batch, S sequence, T tokens, D hidden, V vocabulary (of one device), C tokens of one
chunk.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, Int

from marin_dagster.models.sharding import ROWS, ambient, fitting, split_axes

CHUNK = 1024  # tokens whose logits exist at once, at most
LOGITS = 1 << 23  # logits that exist at once, whatever the model's width


class Loss(NamedTuple):
    """Means over weighted tokens, in nats."""

    loss: Array  # cross entropy + z_loss_weight · z_loss: what is minimised
    cross_entropy: Array
    z_loss: Array  # mean of log² of the softmax's normaliser


def chunk_tokens(vocab_size: int, hidden_dim: int) -> int:
    """Chooses the tokens of one chunk: their logits are few, or few beside the head's gradient.

    Every chunk adds to the gradient of the whole head, so wide heads want large chunks.
    """
    fitting = max(LOGITS // vocab_size, hidden_dim // 2, 16)
    return min(CHUNK, 1 << (fitting.bit_length() - 1))


def token_loss(
    hidden: Float[Array, "B S D"],
    head: Float[Array, "D V"],
    targets: Int[Array, "B S"],
    weights: Float[Array, "B S"],
    z_loss_weight: float = 0.0,
    total_weight: Float[Array, ""] | None = None,
) -> Loss:
    """Computes cross entropy through the head, chunk by chunk, weighted by `weights`.

    The gradients of the head and of the hidden states are made in the same pass (only `loss`
    has one), so logits are computed once and freed. Sums are divided once, by `total_weight`:
    that of the whole batch where this is a part of it, else that of `weights`. So the result
    does not depend on how rows are split. On a mesh every device has its own tokens and, along
    `tensor`, its own part of the vocabulary.
    """
    if total_weight is None:
        total_weight = weights.sum()
    weights = weights / jnp.maximum(total_weight, 1e-9)
    mesh = ambient()
    if mesh is None:
        sums = _sums(hidden, head, targets, weights, z_loss_weight, None)
    else:
        tokens = fitting((ROWS, "context"), targets.shape, mesh.shape)
        split = fitting((None, "tensor"), head.shape, mesh.shape)

        def local(hidden, head, targets, weights):
            parts = _sums(hidden, head, targets, weights, z_loss_weight, split[1])
            return jax.lax.psum(parts, split_axes(tokens))

        sums = jax.shard_map(
            local,
            in_specs=(tokens, split, tokens, tokens),
            out_specs=PartitionSpec(),
            check_vma=False,
        )(hidden, head, targets, weights)
    return Loss(sums[0], *map(jax.lax.stop_gradient, sums[1:]))


def _sums(hidden, head, targets, weights, z_loss_weight, axis) -> Any:
    """Adds up the chunks of one device: loss, cross entropy and z-loss."""
    tokens = targets.size
    chunk = min(chunk_tokens(head.shape[1], head.shape[0]), tokens)
    short = -tokens % chunk
    hidden = jnp.pad(hidden.reshape(tokens, -1), ((0, short), (0, 0)))
    shape = (-1, chunk)
    return _chunked(
        hidden.reshape(*shape, hidden.shape[-1]),
        head,
        jnp.pad(targets.reshape(-1), (0, short)).reshape(shape),
        jnp.pad(weights.reshape(-1), (0, short)).reshape(shape),
        z_loss_weight,
        axis,
    )


class _Chunk(NamedTuple):
    powers: Float[Array, "C V"]  # of e, each logit's over the highest
    total: Float[Array, " C"]  # of the powers
    log_sum: Float[Array, " C"]
    nll: Float[Array, " C"]  # of the targets, in nats
    place: Int[Array, " C"]  # of the target among this device's logits; V where it is elsewhere


def _read(hidden: Float[Array, "C D"], head: Float[Array, "D V"], targets, axis) -> _Chunk:
    vocab = head.shape[1]
    logits = jnp.matmul(hidden, head, preferred_element_type=jnp.float32)
    highest, place = logits.max(-1), targets
    if axis is not None:
        highest = jax.lax.pmax(highest, axis)
        place = targets - jax.lax.axis_index(axis) * vocab
        place = jnp.where((place < 0) | (place >= vocab), vocab, place)
    powers = jnp.exp(logits - highest[:, None])
    rows = jnp.arange(targets.shape[0])
    total, right = powers.sum(-1), logits.at[rows, place].get(mode="fill", fill_value=0.0)
    if axis is not None:
        total, right = jax.lax.psum((total, right), axis)
    log_sum = jnp.log(total) + highest
    return _Chunk(powers, total, log_sum, log_sum - right, place)


@functools.partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def _chunked(hidden, head, targets, weights, z_loss_weight, axis):
    def add(sums, chunk):
        chunk_hidden, chunk_targets, chunk_weights = chunk
        read = _read(chunk_hidden, head, chunk_targets, axis)
        return sums + _pair(read, chunk_weights), None

    sums, _ = jax.lax.scan(add, jnp.zeros(2), (hidden, targets, weights))
    return sums[0] + z_loss_weight * sums[1], sums[0], sums[1]


def _pair(read: _Chunk, weights):
    return jnp.stack([read.nll @ weights, read.log_sum**2 @ weights])


def _chunked_forward(hidden, head, targets, weights, z_loss_weight, axis):
    def add(carry, chunk):
        sums, grad_head = carry
        chunk_hidden, chunk_targets, chunk_weights = chunk
        read = _read(chunk_hidden, head, chunk_targets, axis)
        scale = chunk_weights * (1 + 2 * z_loss_weight * read.log_sum)
        right = jnp.arange(head.shape[1]) == read.place[:, None]
        grad = read.powers * (scale / read.total)[:, None]
        grad = (grad - jnp.where(right, chunk_weights[:, None], 0.0)).astype(head.dtype)
        sums = sums + _pair(read, chunk_weights)
        return (sums, grad_head + chunk_hidden.T @ grad), grad @ head.T

    start = (jnp.zeros(2), jnp.zeros_like(head))
    (sums, grad_head), grad_hidden = jax.lax.scan(add, start, (hidden, targets, weights))
    out = (sums[0] + z_loss_weight * sums[1], sums[0], sums[1])
    return out, (grad_hidden, grad_head)


def _chunked_backward(z_loss_weight, axis, residuals, cotangents):
    grad_hidden, grad_head = residuals
    scale = cotangents[0]
    if axis is not None:  # every device's sums depend on every device's part of the head
        scale = jax.lax.psum(scale, axis)
    return grad_hidden * scale, grad_head * scale, None, None


_chunked.defvjp(_chunked_forward, _chunked_backward)
