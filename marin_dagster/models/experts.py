"""Turns tokens and their chosen experts into the weighted sum of the experts' outputs.

Shapes: T tokens, D hidden, E experts, K experts per token, F expert dim, A assignments (T·K), P
places (assignments padded to whole blocks), M blocks, I input dim, O output dim.
"""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

MAX_BLOCK = 256  # assignments that share one gathered expert; larger blocks gain nothing on CPU


def apply_experts(
    x: Float[Array, "T D"],
    weights: Float[Array, "T K"],
    chosen: Int[Array, "T K"],
    gate_up: Float[Array, "E D twoF"],
    down: Float[Array, "E F D"],
) -> Float[Array, "T D"]:
    """Sums each token's chosen experts, exactly: sorted assignments in blocks of one expert.

    Every expert's assignments are padded to whole blocks; each block gathers its expert's
    weights, so that all experts are one batched matmul of a fixed shape.
    """
    num_experts = gate_up.shape[0]
    places, block_expert, source = block_layout(chosen, num_experts)
    blocks = dispatch(x, source, places).reshape(*block_expert.shape, -1, x.shape[-1])
    hidden = jnp.einsum("mpd,mdf->mpf", blocks, gather_blocks(gate_up, block_expert))
    gate, up = jnp.split(hidden, 2, axis=-1)
    out = jnp.einsum("mpf,mfd->mpd", jax.nn.silu(gate) * up, gather_blocks(down, block_expert))
    return combine(out.reshape(-1, x.shape[-1]), weights, source, places)


def block_layout(
    chosen: Int[Array, "T K"], num_experts: int
) -> tuple[Int[Array, "T K"], Int[Array, " M"], Int[Array, " P"]]:
    """Lays assignments out by expert in whole blocks.

    Returns the place of every assignment, the expert of every block, and the assignment of every
    place (A, one past the last, where a place is padding).
    """
    flat = chosen.reshape(-1)
    block = min(MAX_BLOCK, max(8, flat.size // num_experts // 4))
    num_blocks = -(-flat.size // block) + num_experts
    one_hot = jax.nn.one_hot(flat, num_experts, dtype=jnp.int32)
    rank = jnp.take_along_axis(jnp.cumsum(one_hot, axis=0), flat[:, None], axis=1)[:, 0] - 1
    blocks_of = -(-one_hot.sum(0) // block)
    ends = jnp.cumsum(blocks_of)
    places = (ends - blocks_of)[flat] * block + rank
    block_expert = jnp.searchsorted(ends, jnp.arange(num_blocks), side="right")
    block_expert = jnp.minimum(block_expert, num_experts - 1).astype(jnp.int32)
    source = jnp.full(num_blocks * block, flat.size, jnp.int32)
    source = source.at[places].set(jnp.arange(flat.size, dtype=jnp.int32), unique_indices=True)
    return places.reshape(chosen.shape), block_expert, source


@jax.custom_vjp
def dispatch(
    x: Float[Array, "T D"], source: Int[Array, " P"], places: Int[Array, "T K"]
) -> Float[Array, "P D"]:
    """Copies each token to its K places; padding places are zero. Both directions gather."""
    token = source // places.shape[1]
    return x.at[token].get(mode="fill", fill_value=0)


def _dispatch_forward(x, source, places):
    return dispatch(x, source, places), places


def _dispatch_backward(places, grad):
    return sum(grad[places[:, k]] for k in range(places.shape[1])), None, None


dispatch.defvjp(_dispatch_forward, _dispatch_backward)


@jax.custom_vjp
def combine(
    out: Float[Array, "P D"],
    weights: Float[Array, "T K"],
    source: Int[Array, " P"],
    places: Int[Array, "T K"],
) -> Float[Array, "T D"]:
    """Sums the outputs of each token's K places by its weights. Both directions gather."""
    parts = [out[places[:, k]] * weights[:, k, None] for k in range(places.shape[1])]
    return functools.reduce(jnp.add, parts)


def _combine_forward(out, weights, source, places):
    return combine(out, weights, source, places), (out, weights, source, places)


def _combine_backward(residuals, grad):
    out, weights, source, places = residuals
    num_chosen = places.shape[1]
    scale = weights.reshape(-1).at[source].get(mode="fill", fill_value=0)
    grad_token = grad.at[source // num_chosen].get(mode="fill", fill_value=0)
    grad_weights = [jnp.sum(grad * out[places[:, k]], axis=-1) for k in range(num_chosen)]
    return grad_token * scale[:, None], jnp.stack(grad_weights, axis=1), None, None


combine.defvjp(_combine_forward, _combine_backward)


def gather_blocks(
    weight: Float[Array, "E I O"], block_expert: Int[Array, " M"]
) -> Float[Array, "M I O"]:
    """Copies each block's expert; blocks are in the order of experts."""
    return weight.at[block_expert].get(indices_are_sorted=True, mode="promise_in_bounds")
