"""Turns tokens and their experts into sums of experts, by what the backend does best.

Shapes: T tokens, D hidden, E experts, K experts per token, F expert dim.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from marin_dagster.models.experts import apply_experts


def grouped_experts(
    x: Float[Array, "T D"],
    weights: Float[Array, "T K"],
    chosen: Int[Array, "T K"],
    gate_up: Float[Array, "E D twoF"],
    down: Float[Array, "E F D"],
) -> Float[Array, "T D"]:
    """Sums each token's chosen experts, exactly; an expert of number E adds nothing.

    A CPU has no grouped matmul worth its name, accelerators have one.
    """
    if jax.default_backend() != "cpu":
        return ragged_experts(x, weights, chosen, gate_up, down)
    return apply_experts(x, weights, chosen, gate_up, down)


def ragged_experts(
    x: Float[Array, "T D"],
    weights: Float[Array, "T K"],
    chosen: Int[Array, "T K"],
    gate_up: Float[Array, "E D twoF"],
    down: Float[Array, "E F D"],
) -> Float[Array, "T D"]:
    """The same by `ragged_dot`: sorted assignments, and none computed that has no expert."""
    num_experts, num_chosen = gate_up.shape[0], chosen.shape[1]
    flat = chosen.reshape(-1)
    order = jnp.argsort(flat, stable=True)
    sizes = jnp.zeros(num_experts, jnp.int32).at[flat].add(1, mode="drop")
    rows = x[order // num_chosen]
    gate, up = jnp.split(jax.lax.ragged_dot(rows, gate_up, sizes), 2, axis=-1)
    out = jax.lax.ragged_dot(jax.nn.silu(gate) * up, down, sizes)
    out = jnp.where((jnp.arange(flat.size) < sizes.sum())[:, None], out, 0)
    by_token = out[jnp.argsort(order)].reshape(*chosen.shape, -1)
    share = jnp.where(chosen < num_experts, weights, 0.0).astype(out.dtype)
    return jnp.einsum("tkd,tk->td", by_token, share)
