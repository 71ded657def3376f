"""Turns queries, keys and values into mixed values, never holding all scores at once.

Shapes: B batch, S sequence, Q queries of one chunk, H heads, N key heads, C head dim.
"""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from marin_dagster.models.context import attend_over_context, is_divided

QUERY_CHUNK = 128  # queries against their causal prefix; measured best on CPU for rows of 512


def causal_attention(
    queries: Float[Array, "B S H C"],
    keys: Float[Array, "B S N C"],
    values: Float[Array, "B S N C"],
    segment_ids: Int[Array, "B S"],
) -> Float[Array, "B S HC"]:
    """Attends to earlier tokens of the same segment, chunk by chunk."""
    if is_divided():
        return attend_over_context(attend, QUERY_CHUNK, queries, keys, values, segment_ids)
    seq_len = queries.shape[1]
    positions = jnp.arange(seq_len)
    chunks = []
    for start in range(0, seq_len, QUERY_CHUNK):
        end = min(start + QUERY_CHUNK, seq_len)
        causal = positions[None, start:end, None] >= positions[None, None, :end]
        same = segment_ids[:, start:end, None] == segment_ids[:, None, :end]
        chunks.append(attend(queries[:, start:end], keys[:, :end], values[:, :end], causal & same))
    return jnp.concatenate(chunks, axis=1)


def attend(
    queries: Float[Array, "B Q H C"],
    keys: Float[Array, "B S N C"],
    values: Float[Array, "B S N C"],
    mask: Bool[Array, "B Q S"],
) -> Float[Array, "B Q HC"]:
    """softmax(q·k/√C)·v where `mask` allows, in float32; H/N query heads share a key head."""
    batch, num_queries, num_heads, head_dim = queries.shape
    grouped = queries.reshape(batch, num_queries, keys.shape[2], -1, head_dim)
    scores = jnp.einsum("bqngc,bsnc->bngqs", grouped, keys).astype(jnp.float32)
    scores = jnp.where(mask[:, None, None], scores / math.sqrt(head_dim), -1e30)
    weights = jax.nn.softmax(scores, axis=-1).astype(values.dtype)
    mixed = jnp.einsum("bngqs,bsnc->bqngc", weights, values)
    return mixed.reshape(batch, num_queries, num_heads * head_dim)
