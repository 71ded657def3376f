"""Turns one device's tokens into their experts' sums where the experts are those of many devices.

All of it runs inside a `shard_map`, along the axis `expert`.

Shapes: T tokens and X experts of this device, N devices of the axis, D hidden, K experts per
token, F expert dim, A assignments (T·K), P places of a buffer, W rows of an exchange.
"""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from marin_dagster.models.grouped import grouped_experts

AXIS = "expert"


def ring(
    x: Float[Array, "T D"],
    weights: Float[Array, "T K"],
    chosen: Int[Array, "T K"],
    gate_up: Float[Array, "X D twoF"],
    down: Float[Array, "X F D"],
) -> Float[Array, "T D"]:
    """Gathers all tokens of the axis, computes those of the experts here, and sums them back."""
    x, weights, chosen = (
        jax.lax.all_gather(rows, AXIS, tiled=True) for rows in (x, weights, chosen)
    )
    experts = gate_up.shape[0]
    here = chosen - jax.lax.axis_index(AXIS) * experts
    here = jnp.where((here < 0) | (here >= experts), experts, here)
    out = grouped_experts(x, weights, here, gate_up, down)
    return jax.lax.psum_scatter(out, AXIS, scatter_dimension=0, tiled=True)


def peer_capacity(assignments: int, factor: float | None) -> int:
    """Assignments that one device can send to each other one; without a factor, all it has."""
    if factor is None:
        return assignments
    return min(assignments, math.ceil(assignments * factor / jax.lax.axis_size(AXIS)))


def all_to_all(
    x: Float[Array, "T D"],
    weights: Float[Array, "T K"],
    chosen: Int[Array, "T K"],
    gate_up: Float[Array, "X D twoF"],
    down: Float[Array, "X F D"],
    capacity: int,
) -> Float[Array, "T D"]:
    """Sends every assignment to the device of its expert and what comes of it back.

    The caller sees to it that no peer gets more than `capacity` assignments of one device.
    """
    peers, experts = jax.lax.axis_size(AXIS), gate_up.shape[0]
    order = jnp.argsort(chosen.reshape(-1), stable=True)  # by expert, so by peer; the last are none
    expert = chosen.reshape(-1)[order]
    rows = x[order // chosen.shape[1]]
    sizes = jnp.sum(expert[:, None] // experts == jnp.arange(peers), axis=0, dtype=jnp.int32)
    trip = _Ragged if jax.default_backend() != "cpu" else _Fixed
    there_and_back = trip(sizes, capacity)
    received = there_and_back.there(rows)
    where = there_and_back.there((expert % experts + 1).astype(jnp.int32)[:, None]) - 1
    where = jnp.where(where < 0, experts, where)  # an empty place
    out = grouped_experts(received, jnp.ones(where.shape, x.dtype), where, gate_up, down)
    out = there_and_back.back(out, rows.shape[0])
    out = jnp.where((expert < peers * experts)[:, None], out, 0)
    by_token = out[jnp.argsort(order)].reshape(*chosen.shape, -1)
    share = jnp.where(chosen < peers * experts, weights, 0.0).astype(out.dtype)
    return jnp.einsum("tkd,tk->td", by_token, share)


class _Fixed:
    """An exchange by buffers of one size for every peer, filled up with zeros."""

    def __init__(self, sizes: Int[Array, " N"], capacity: int):
        self.peers, self.capacity = sizes.shape[0], capacity
        self.starts = jnp.cumsum(sizes) - sizes
        self.sizes = sizes

    def there(self, rows: Float[Array, "A W"] | Int[Array, "A W"]) -> Array:
        """Sends rows that are sorted by peer; returns one buffer after the other."""
        place = jnp.arange(self.capacity)
        source = self.starts[:, None] + place
        source = jnp.where(place < self.sizes[:, None], source, rows.shape[0]).reshape(-1)
        buffers = rows.at[source].get(mode="fill", fill_value=0)
        return jax.lax.all_to_all(buffers, AXIS, 0, 0, tiled=True)

    def back(self, rows: Float[Array, "P W"], count: int) -> Float[Array, "A W"]:
        """Brings the rows back to the order in which they were sent."""
        buffers = jax.lax.all_to_all(rows, AXIS, 0, 0, tiled=True)
        index = jnp.arange(count)
        peer = jnp.searchsorted(self.starts + self.sizes, index, side="right")
        peer = jnp.minimum(peer, self.peers - 1)
        place = peer * self.capacity + index - self.starts[peer]
        return buffers.at[place].get(mode="fill", fill_value=0)


class _Ragged:
    """An exchange of just the rows that there are, where the backend has one."""

    def __init__(self, sizes: Int[Array, " N"], capacity: int):
        me = jax.lax.axis_index(AXIS)
        every = jax.lax.all_gather(sizes, AXIS)  # from sender (row) to receiver (column)
        before = jnp.cumsum(every, axis=0) - every  # in the receiver's buffer
        starts = jnp.cumsum(every, axis=1) - every  # in the sender's rows
        self.room = sizes.shape[0] * capacity
        self.outward = (starts[me], sizes, before[me], every[:, me])
        self.homeward = (before[:, me], every[:, me], starts[:, me], sizes)

    def there(self, rows: Float[Array, "A W"] | Int[Array, "A W"]) -> Array:
        room = jnp.zeros((self.room, rows.shape[1]), rows.dtype)
        return jax.lax.ragged_all_to_all(rows, room, *self.outward, axis_name=AXIS)

    def back(self, rows: Float[Array, "P W"], count: int) -> Float[Array, "A W"]:
        room = jnp.zeros((count, rows.shape[1]), rows.dtype)
        return jax.lax.ragged_all_to_all(rows, room, *self.homeward, axis_name=AXIS)
