"""Turns tokens and their chosen experts into the weighted sum of the experts' outputs.

Shapes: T tokens, D hidden, E experts, K experts per token, F expert dim, A assignments (T·K), P
places (assignments padded to whole blocks), M blocks, R rows of one block.
"""

from functools import reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.lax import dynamic_index_in_dim as pick
from jax.lax import dynamic_slice_in_dim as cut
from jax.lax import dynamic_update_slice_in_dim as put
from jaxtyping import Array, Float, Int

MAX_BLOCK = 256  # rows of one expert that are multiplied at once; larger ones gain nothing on CPU


class Layout(NamedTuple):
    """Where the assignments lie: sorted by expert, each expert's padded to whole blocks."""

    places: Int[Array, "T K"]  # P, one past the last, where an assignment has no expert
    source: Int[Array, " P"]  # the assignment of a place; A where a place is padding
    block_expert: Int[Array, " M"]
    num_blocks: Int[Array, ""]  # that hold something; the rest are not computed


def apply_experts(
    x: Float[Array, "T D"],
    weights: Float[Array, "T K"],
    chosen: Int[Array, "T K"],
    gate_up: Float[Array, "E D twoF"],
    down: Float[Array, "E F D"],
) -> Float[Array, "T D"]:
    """Sums each token's chosen experts, exactly; an expert of number E adds nothing.

    A loop over blocks of one expert's assignments, as many as there are, in both directions: what
    a block needs stays in the cache, and gradients add up where they stand.
    """
    return _blockwise(x, weights, chosen, gate_up, down)


def block_layout(chosen: Int[Array, "T K"], num_experts: int) -> Layout:
    """Lays assignments out by expert in whole blocks."""
    flat = chosen.reshape(-1)
    rows = min(MAX_BLOCK, max(8, flat.size // num_experts // 4))
    size = -(-flat.size // rows) + num_experts
    one_hot = jax.nn.one_hot(flat, num_experts, dtype=jnp.int32)
    rank = jnp.sum((jnp.cumsum(one_hot, axis=0) - 1) * one_hot, axis=1)
    blocks_of = -(-one_hot.sum(0) // rows)
    ends = jnp.cumsum(blocks_of)
    first = (ends - blocks_of).at[flat].get(mode="clip")
    places = jnp.where(flat < num_experts, first * rows + rank, size * rows)
    block_expert = jnp.searchsorted(ends, jnp.arange(size), side="right")
    block_expert = jnp.minimum(block_expert, num_experts - 1).astype(jnp.int32)
    numbers = jnp.arange(flat.size, dtype=jnp.int32)
    source = jnp.full(size * rows, flat.size, jnp.int32).at[places].set(numbers, mode="drop")
    return Layout(places.reshape(chosen.shape), source, block_expert, ends[-1])


@jax.custom_vjp
def _blockwise(x, weights, chosen, gate_up, down) -> Array:
    return _forward(x, weights, chosen, gate_up, down)[0]


def _forward(x, weights, chosen, gate_up, down) -> tuple[Array, Any]:
    layout = block_layout(chosen, gate_up.shape[0])
    size, rows = layout.source.size, layout.source.size // layout.block_expert.size
    token = _token(layout, x.shape[0])

    def block(index, carry):
        out, hidden = carry
        at, expert = index * rows, layout.block_expert[index]
        gate_up_block = x[cut(token, at, rows)] @ pick(gate_up, expert, keepdims=False)
        gate, up = jnp.split(gate_up_block, 2, axis=-1)
        out_block = (jax.nn.silu(gate) * up) @ pick(down, expert, keepdims=False)
        return put(out, out_block, at, 0), put(hidden, gate_up_block, at, 0)

    buffers = (  # what no block writes, nobody reads
        jax.lax.empty((size, x.shape[1]), x.dtype),
        jax.lax.empty((size, gate_up.shape[2]), x.dtype),
    )
    out, hidden = jax.lax.fori_loop(0, layout.num_blocks, block, buffers)
    parts = _of_assignments(out, layout)
    mixed = reduce(jnp.add, (part * weights[:, k, None] for k, part in enumerate(parts)))
    return mixed, (x, weights, gate_up, down, layout, hidden)


def _backward(residuals, grad) -> tuple[Any, ...]:
    x, weights, gate_up, down, layout, hidden = residuals
    size, rows = layout.source.size, layout.source.size // layout.block_expert.size
    token = _token(layout, x.shape[0])
    scale = weights.reshape(-1).at[layout.source].get(mode="fill", fill_value=0)

    def block(index, carry):
        grad_x, grad_weights, grad_gate_up, grad_down = carry
        at, expert = index * rows, layout.block_expert[index]
        tokens, share = cut(token, at, rows), cut(scale, at, rows)[:, None]
        gate, up = jnp.split(cut(hidden, at, rows), 2, axis=-1)
        sigmoid = jax.nn.sigmoid(gate)
        inner = gate * sigmoid * up
        grad_out = grad[tokens]
        grad_inner = grad_out @ pick(down, expert, keepdims=False).T
        grad_share = jnp.sum(grad_inner * inner, axis=-1)
        grad_inner = grad_inner * share
        grad_gate = grad_inner * up * (sigmoid * (1 + gate * (1 - sigmoid)))
        grad_hidden = jnp.concatenate([grad_gate, grad_inner * gate * sigmoid], axis=-1)
        return (
            put(grad_x, grad_hidden @ pick(gate_up, expert, keepdims=False).T, at, 0),
            put(grad_weights, grad_share, at, 0),
            _add(grad_gate_up, expert, x[tokens].T, grad_hidden),
            _add(grad_down, expert, inner.T, grad_out * share),
        )

    sums = (
        jax.lax.empty((size, x.shape[1]), x.dtype),
        jax.lax.empty((size,), weights.dtype),
        jnp.zeros(gate_up.shape, jnp.float32),
        jnp.zeros(down.shape, jnp.float32),
    )
    sums = jax.lax.fori_loop(0, layout.num_blocks, block, sums)
    grad_x = reduce(jnp.add, _of_assignments(sums[0], layout))
    grad_weights = jnp.stack(_of_assignments(sums[1], layout), axis=1)
    return grad_x, grad_weights, None, sums[2].astype(gate_up.dtype), sums[3].astype(down.dtype)


_blockwise.defvjp(_forward, _backward)


def _token(layout: Layout, num_tokens: int) -> Int[Array, " P"]:
    """The token of every place; padding computes the last one again, and nobody asks for it."""
    return jnp.minimum(layout.source // layout.places.shape[1], num_tokens - 1)


def _of_assignments(values: Array, layout: Layout) -> list[Array]:
    """What lies at each token's places, choice by choice; zero where there is no expert."""
    places = layout.places
    return [values.at[places[:, k]].get(mode="fill", fill_value=0) for k in range(places.shape[1])]


def _add(total: Array, expert: Array, left: Array, right: Array) -> Array:
    """Adds a product to the sum of one expert, in float32."""
    product = jnp.matmul(left, right, preferred_element_type=jnp.float32)
    return total.at[expert].add(product)
