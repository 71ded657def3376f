"""Turns attention within one device into attention over rows that are divided along `context`.

Shapes: B batch, S sequence, H heads, N key heads, C head dim.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, Int

from marin_dagster.models.sharding import ROWS, ambient, axis_size, fitting

AXIS = "context"


def is_divided() -> bool:
    """Whether rows are divided over several devices."""
    return axis_size(AXIS) > 1


def attend_over_context(
    attend: Callable[..., Array],
    chunk: int,
    queries: Float[Array, "B S H C"],
    keys: Float[Array, "B S N C"],
    values: Float[Array, "B S N C"],
    segment_ids: Int[Array, "B S"],
    window: int | None = None,
) -> Float[Array, "B S HC"]:
    """Gathers the keys of whole rows and lets every device attend from its own queries.

    `attend(queries, keys, values, mask)` is called for `chunk` queries at a time, and again on
    the way back, so that no device holds all of its scores.
    """
    mesh = ambient()
    assert mesh is not None
    heads = fitting((None, "tensor"), (1, keys.shape[2]), mesh.shape)[1]
    rows, along = fitting((ROWS, AXIS), segment_ids.shape, mesh.shape)
    parts = PartitionSpec(rows, along, heads, None)

    def local(queries, keys, values, segment_ids):
        if along is None:  # too few positions to divide
            first, seen = 0, segment_ids
        else:
            first = jax.lax.axis_index(AXIS) * queries.shape[1]
            keys, values, seen = (
                jax.lax.all_gather(x, AXIS, axis=1, tiled=True) for x in (keys, values, segment_ids)
            )
        return _by_chunks(attend, chunk, first, queries, keys, values, segment_ids, seen, window)

    return jax.shard_map(
        local,
        in_specs=(parts, parts, parts, PartitionSpec(rows, along)),
        out_specs=PartitionSpec(rows, along, heads),
        check_vma=False,
    )(queries, keys, values, segment_ids)


def _by_chunks(attend, chunk, first, queries, keys, values, own, seen, window) -> Array:
    """Attends from queries that begin at position `first` of the keys."""
    batch, length = queries.shape[:2]
    chunk = min(chunk, length)
    short = -length % chunk
    queries = jnp.pad(queries, ((0, 0), (0, short), (0, 0), (0, 0)))
    own = jnp.pad(own, ((0, 0), (0, short)), constant_values=-2)  # no segment: its mean is cut off
    span = keys.shape[1] if window is None else min(keys.shape[1], chunk + window - 1)

    @jax.checkpoint
    def one(start):
        begin = jnp.clip(first + start + chunk - span, 0, keys.shape[1] - span)
        inner, outer = (
            jax.lax.dynamic_slice_in_dim(x, at, size, 1)
            for x, at, size in ((own, start, chunk), (seen, begin, span))
        )
        distance = (first + start + jnp.arange(chunk))[:, None] - (begin + jnp.arange(span))
        mask = (distance >= 0) if window is None else (distance >= 0) & (distance < window)
        return attend(
            jax.lax.dynamic_slice_in_dim(queries, start, chunk, 1),
            jax.lax.dynamic_slice_in_dim(keys, begin, span, 1),
            jax.lax.dynamic_slice_in_dim(values, begin, span, 1),
            mask & (inner[:, :, None] == outer[:, None, :]),
        )

    out = jax.lax.map(one, jnp.arange(0, length + short, chunk))
    return jnp.moveaxis(out, 0, 1).reshape(batch, length + short, -1)[:, :length]
