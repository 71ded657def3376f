"""Turns tokens and their chosen experts into the weighted sum of the experts' outputs.

Shapes: T tokens, D hidden, E experts, K experts per token, F expert dim, A assignments (T·K), P
places (assignments, each expert's padded to whole small blocks), M blocks.
"""

from collections.abc import Callable
from functools import reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.lax import dynamic_index_in_dim as pick
from jax.lax import dynamic_slice_in_dim as cut
from jax.lax import dynamic_update_slice_in_dim as put
from jaxtyping import Array, Float, Int

MAX_BLOCK = 256  # rows of one expert that are multiplied at once; larger ones gain nothing on CPU
SMALLER = 4  # times the rows of a large block are those of a small one, for what is left


class Blocks(NamedTuple):
    """Pieces of the places, of one size, each with assignments of one expert."""

    start: Int[Array, " M"]  # the first place
    expert: Int[Array, " M"]
    count: Int[Array, ""]  # that hold something; the rest are not computed


class Layout(NamedTuple):
    """Where the assignments lie: sorted by expert, in large blocks, and small ones for the rest."""

    places: Int[Array, "T K"]  # P, one past the last, where an assignment has no expert
    source: Int[Array, " P"]  # the assignment of a place; A where a place is padding
    large: Blocks
    small: Blocks


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


def block_rows(num_assignments: int, num_experts: int) -> tuple[int, int]:
    """Rows of a large and of a small block."""
    large = min(MAX_BLOCK, max(8, num_assignments // num_experts // 4))
    small = max(8, large // SMALLER)
    return large // small * small, small


def block_layout(chosen: Int[Array, "T K"], num_experts: int) -> Layout:
    """Lays assignments out by expert in whole blocks."""
    flat = chosen.reshape(-1)
    large, small = block_rows(flat.size, num_experts)
    size = (-(-flat.size // small) + num_experts) * small
    one_hot = jax.nn.one_hot(flat, num_experts, dtype=jnp.int32)
    rank = jnp.sum((jnp.cumsum(one_hot, axis=0) - 1) * one_hot, axis=1)
    padded = -(-one_hot.sum(0) // small) * small
    first = jnp.cumsum(padded) - padded
    places = jnp.where(flat < num_experts, first.at[flat].get(mode="clip") + rank, size)
    numbers = jnp.arange(flat.size, dtype=jnp.int32)
    source = jnp.full(size, flat.size, jnp.int32).at[places].set(numbers, mode="drop")
    full, rest = padded // large, padded % large // small
    return Layout(
        places.reshape(chosen.shape),
        source,
        _blocks(first, full, large, size // large),
        _blocks(first + full * large, rest, small, num_experts * (large // small)),
    )


def _blocks(first: Int[Array, " E"], number: Int[Array, " E"], rows: int, most: int) -> Blocks:
    """So many blocks for each expert, one after the other from its first place on."""
    index, ends = jnp.arange(most), jnp.cumsum(number)
    expert = jnp.minimum(jnp.searchsorted(ends, index, side="right"), number.size - 1)
    start = first[expert] + (index - (ends - number)[expert]) * rows
    return Blocks(start.astype(jnp.int32), expert.astype(jnp.int32), ends[-1])


def _for_blocks(layout: Layout, num_experts: int, body: Callable[..., Any], carry: Any) -> Any:
    """Runs `body(start, expert, rows, carry)` for all blocks."""
    sizes = block_rows(layout.places.size, num_experts)
    for blocks, rows in zip((layout.large, layout.small), sizes, strict=True):

        def block(index, carry, blocks=blocks, rows=rows):
            return body(blocks.start[index], blocks.expert[index], rows, carry)

        carry = jax.lax.fori_loop(0, blocks.count, block, carry)
    return carry


@jax.custom_vjp
def _blockwise(x, weights, chosen, gate_up, down) -> Array:
    return _forward(x, weights, chosen, gate_up, down)[0]


def _forward(x, weights, chosen, gate_up, down) -> tuple[Array, Any]:
    layout = block_layout(chosen, gate_up.shape[0])
    size, token = layout.source.size, _token(layout, x.shape[0])

    def block(at, expert, rows, carry):
        out, hidden = carry
        gate_up_block = x[cut(token, at, rows)] @ pick(gate_up, expert, keepdims=False)
        gate, up = jnp.split(gate_up_block, 2, axis=-1)
        out_block = (jax.nn.silu(gate) * up) @ pick(down, expert, keepdims=False)
        return put(out, out_block, at, 0), put(hidden, gate_up_block, at, 0)

    buffers = (  # what no block writes, nobody reads
        jax.lax.empty((size, x.shape[1]), x.dtype),
        jax.lax.empty((size, gate_up.shape[2]), x.dtype),
    )
    out, hidden = _for_blocks(layout, gate_up.shape[0], block, buffers)
    parts = _of_assignments(out, layout)
    mixed = reduce(jnp.add, (part * weights[:, k, None] for k, part in enumerate(parts)))
    return mixed, (x, weights, gate_up, down, layout, hidden)


def _backward(residuals, grad) -> tuple[Any, ...]:
    x, weights, gate_up, down, layout, hidden = residuals
    size, token = layout.source.size, _token(layout, x.shape[0])
    scale = weights.reshape(-1).at[layout.source].get(mode="fill", fill_value=0)

    def block(at, expert, rows, carry):
        grad_x, grad_weights, grad_gate_up, grad_down = carry
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
    sums = _for_blocks(layout, gate_up.shape[0], block, sums)
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
