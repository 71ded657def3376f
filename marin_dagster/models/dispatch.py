"""Turns tokens and their chosen experts into the experts' sums, wherever on the mesh they live.

How assignments travel is placement: all ways compute the same numbers.

Shapes: B batch, S sequence, D hidden, E experts, K experts per token, F expert dim, T tokens of
one device, X experts of one device.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from marin_dagster.models.capacity import fair_keep
from marin_dagster.models.exchange import all_to_all, peer_capacity, ring
from marin_dagster.models.grouped import grouped_experts
from marin_dagster.models.sharding import ROWS, ambient, fitting, split_axes

# How assignments travel: "all_to_all", or "ring": all tokens visit all experts, which needs no
# buffers for the worst case. `with exchange("ring"): step(...)`.
exchange = jax.make_user_context(default_value="all_to_all")


class Senders(NamedTuple):
    """A limit of what one device sends to another, as a factor over an even share."""

    factor: float
    key: PRNGKeyArray


def routed_experts(
    x: Float[Array, "B S D"],
    weights: Float[Array, "B S K"],
    chosen: Int[Array, "B S K"],
    valid: Bool[Array, "B S"],
    gate_up: Float[Array, "E D twoF"],
    down: Float[Array, "E F D"],
    senders: Senders | None = None,
) -> tuple[Float[Array, "B S D"], Float[Array, ""]]:
    """Sums each token's chosen experts; an expert of number E is none.

    Returns also how many assignments did not fit the senders' limit, if there is one.
    """
    mesh = ambient()
    if mesh is None:
        flat = _flat(x, weights, chosen)
        out = grouped_experts(*flat, gate_up, down)
        return out.reshape(x.shape), jnp.zeros(())
    halves = gate_up.reshape(*gate_up.shape[:2], 2, -1)
    tokens = fitting((ROWS, "context", None), x.shape, mesh.shape)
    experts = fitting(("expert", None, None, "tensor"), halves.shape, mesh.shape)
    expert_axis, tensor_axis = experts[0], experts[3]
    key = None if senders is None or expert_axis is None else senders.key

    def local(x, weights, chosen, valid, gate_up, down, key):
        gate_up = gate_up.reshape(*gate_up.shape[:2], -1)
        factor, dropped = None, jnp.zeros(())
        if senders is not None and key is not None:
            factor, axes = senders.factor, split_axes(tokens)
            chosen, lost = _limited(chosen, valid, gate_up.shape[0], factor, _own(key, axes))
            dropped = jax.lax.psum(lost, axes)
        flat = _flat(x, weights, chosen)
        if expert_axis is None:
            out = grouped_experts(*flat, gate_up, down)
        elif exchange.value == "ring":
            out = ring(*flat, gate_up, down)
        else:
            out = all_to_all(*flat, gate_up, down, peer_capacity(chosen.size, factor))
        out = jax.lax.psum(out, tensor_axis) if tensor_axis else out
        return out.reshape(x.shape), dropped

    places = (tokens, tokens, tokens, PartitionSpec(*tokens[:2]))
    return jax.shard_map(
        local,
        in_specs=(*places, experts, PartitionSpec(expert_axis, tensor_axis), PartitionSpec()),
        out_specs=(tokens, PartitionSpec()),
        check_vma=False,
    )(x, weights, chosen, valid, halves, down, key)


def _flat(x: Array, weights: Array, chosen: Array) -> tuple[Array, Array, Array]:
    choices = (-1, chosen.shape[-1])
    return x.reshape(-1, x.shape[-1]), weights.reshape(choices), chosen.reshape(choices)


def _own(key: PRNGKeyArray, axes: tuple[str, ...]) -> PRNGKeyArray:
    """A key of each device's own."""
    return jax.random.fold_in(key, jax.lax.axis_index(axes)) if axes else key


def _limited(
    chosen: Int[Array, "B S K"],
    valid: Bool[Array, "B S"],
    experts_here: int,
    factor: float,
    key: PRNGKeyArray,
) -> tuple[Int[Array, "B S K"], Float[Array, ""]]:
    """Sends away what a peer's buffer does not hold: fairly, and to no expert."""
    peers = jax.lax.axis_size("expert")
    none = peers * experts_here
    keep = fair_keep(chosen // experts_here, valid, peers, factor, key)
    lost = jnp.sum((chosen < none) & valid[..., None] & ~keep)
    return jnp.where(keep, chosen, none), lost.astype(jnp.float32)
