"""Turns queries, keys and values into mixed values, never holding all scores at once.

Shapes: B batch, S sequence, T keys, Q queries of one chunk, H heads, N key heads, C head dim.
"""

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from marin_dagster.models.context import attend_over_context, is_divided

QUERY_CHUNK = 128  # queries against the keys they see; measured best on CPU for rows of 512
LONG_ROW = 1024  # tokens; longer rows compute the scores again on the way back
PARTS = 8  # of a long row: the queries of a part share a prefix of keys
NO_SEGMENT = -2  # segment id of places that only fill a chunk up


def causal_attention(
    queries: Float[Array, "B S H C"],
    keys: Float[Array, "B S N C"],
    values: Float[Array, "B S N C"],
    segment_ids: Int[Array, "B S"],
    window: int | None = None,
) -> Float[Array, "B S HC"]:
    """Attends to earlier tokens of the same segment, and of the last `window` with one.

    A token counts as the first of its own window. Compute is linear in row · window; memory is
    linear in the row beyond `LONG_ROW` tokens.
    """
    seq_len = queries.shape[1]
    if window is not None and window >= seq_len:
        window = None
    if is_divided():
        return attend_over_context(attend, QUERY_CHUNK, queries, keys, values, segment_ids, window)
    if seq_len <= LONG_ROW:
        return _short(queries, keys, values, segment_ids, window)
    return _long(queries, keys, values, segment_ids, window)


def attend(
    queries: Float[Array, "B Q H C"],
    keys: Float[Array, "B T N C"],
    values: Float[Array, "B T N C"],
    mask: Bool[Array, "B Q T"],
) -> Float[Array, "B Q HC"]:
    """softmax(q·k/√C)·v where `mask` allows, in float32; H/N query heads share a key head."""
    return _rows(_mix(*_heads(queries, keys, values), mask))


def visible(
    queries: Int[Array, "*#B Q"], keys: Int[Array, "*#B T"], window: int | None
) -> Bool[Array, "*#B Q T"]:
    """Whether the token at one position may look at the token at another."""
    distance = queries[..., :, None] - keys[..., None, :]
    return distance >= 0 if window is None else (distance >= 0) & (distance < window)


def _short(queries, keys, values, segment_ids, window: int | None) -> Array:
    """Chunks of queries against the keys that they see; keeps the scores for the way back."""
    seq_len = queries.shape[1]
    positions = jnp.arange(seq_len)
    queries, keys, values = _heads(queries, keys, values)
    chunks = []
    for start in range(0, seq_len, QUERY_CHUNK):
        end = min(start + QUERY_CHUNK, seq_len)
        first = 0 if window is None else max(0, start - window + 1)
        seen = slice(first, end)
        mask = visible(positions[start:end], positions[seen], window)
        same = segment_ids[:, start:end, None] == segment_ids[:, None, seen]
        chunk = queries[:, :, :, start:end], keys[:, :, seen], values[:, :, seen]
        chunks.append(_mix(*chunk, mask & same))
    return _rows(jnp.concatenate(chunks, axis=3))


def _heads(queries, keys, values) -> tuple[Array, Array, Array]:
    """Puts heads before tokens, once for all matmuls; queries in G groups, B N G Q C."""
    batch, num_queries, _, head_dim = queries.shape
    grouped = queries.reshape(batch, num_queries, keys.shape[2], -1, head_dim)
    return grouped.transpose(0, 2, 3, 1, 4), keys.swapaxes(1, 2), values.swapaxes(1, 2)


def _rows(mixed: Array) -> Array:
    """The other way round, with the heads side by side."""
    by_token = mixed.transpose(0, 3, 1, 2, 4)
    return by_token.reshape(*by_token.shape[:2], -1)


@jax.custom_vjp
def _mix(queries, keys, values, mask) -> Array:
    return _mix_forward(queries, keys, values, mask)[0]


def _mix_forward(queries, keys, values, mask) -> tuple[Array, Any]:
    """Keeps the powers of the scores; their sum divides what they mix, which is smaller."""
    scaled = queries / math.sqrt(queries.shape[-1])
    scores = jnp.einsum("bngqc,bntc->bngqt", scaled, keys, preferred_element_type=jnp.float32)
    scores = jnp.where(mask[:, None, None], scores, -1e30)
    powers = jnp.exp(scores - scores.max(-1, keepdims=True))
    total = powers.sum(-1, keepdims=True)
    powers = powers.astype(values.dtype)
    mixed = jnp.einsum("bngqt,bntc->bngqc", powers, values, preferred_element_type=jnp.float32)
    mixed = (mixed / total).astype(values.dtype)
    return mixed, (scaled, keys, values, powers, total, mixed)


def _mix_backward(residuals, grad) -> tuple[Array, Array, Array, None]:
    scaled, keys, values, powers, total, mixed = residuals
    grad = grad / total
    shift = jnp.sum(grad * mixed, axis=-1, keepdims=True)
    grad = grad.astype(values.dtype)
    grad_values = jnp.einsum("bngqt,bngqc->bntc", powers, grad)
    grad_powers = jnp.einsum("bngqc,bntc->bngqt", grad, values, preferred_element_type=jnp.float32)
    grad_scores = (powers * (grad_powers - shift)).astype(values.dtype)
    grad_queries = jnp.einsum("bngqt,bntc->bngqc", grad_scores, keys)
    grad_keys = jnp.einsum("bngqt,bngqc->bntc", grad_scores, scaled)
    return grad_queries / math.sqrt(keys.shape[-1]), grad_keys, grad_values, None


_mix.defvjp(_mix_forward, _mix_backward)


def _long(queries, keys, values, segment_ids, window: int | None) -> Array:
    """Loops over chunks of queries; only inputs and outputs are kept for the way back."""
    seq_len, chunk = queries.shape[1], QUERY_CHUNK
    if window is not None:
        chunk = max(QUERY_CHUNK, min(4 * QUERY_CHUNK, window // 8))  # 12 % beyond the window
    padded = -(-seq_len // chunk) * chunk
    queries, keys, values = (_pad(array, 0, padded - seq_len) for array in (queries, keys, values))
    segments = _pad(segment_ids, 0, padded - seq_len, NO_SEGMENT)
    if window is None:
        parts = []
        for start, end in _parts(padded // chunk):
            rows, seen = slice(start * chunk, end * chunk), slice(0, end * chunk)
            blocks = _Blocks(chunk, end * chunk, 0, start * chunk, 0, None)
            parts.append(
                _blockwise(
                    blocks,
                    queries[:, rows],
                    keys[:, seen],
                    values[:, seen],
                    segments[:, rows],
                    segments[:, seen],
                )
            )
        return jnp.concatenate(parts, axis=1)[:, :seq_len]
    before = -(-(window - 1) // chunk) * chunk
    blocks = _Blocks(chunk, before + chunk, chunk, 0, -before, window)
    out: Array = _blockwise(
        blocks,
        queries,
        _pad(keys, before, 0),
        _pad(values, before, 0),
        segments,
        _pad(segments, before, 0, NO_SEGMENT),
    )
    return out[:, :seq_len]


def _parts(num_chunks: int) -> list[tuple[int, int]]:
    ends = sorted({-(-num_chunks * part // PARTS) for part in range(1, PARTS + 1)})
    return list(zip([0, *ends], ends, strict=False))


def _pad(array: Array, before: int, after: int, value: int = 0) -> Array:
    widths = [(0, 0), (before, after)] + [(0, 0)] * (array.ndim - 2)
    return jnp.pad(array, widths, constant_values=value)


class _Blocks(NamedTuple):
    """Which keys each chunk of queries looks at: `span` of them, `step` further per chunk."""

    chunk: int
    span: int
    step: int
    query_start: int  # position of the first query
    key_start: int  # position of the first key; negative where padding stands before the row
    window: int | None

    def part(
        self, index, queries, keys, values, query_segments, key_segments
    ) -> tuple[Array, Array, Array, Array]:
        """The queries, keys, values and mask of one chunk."""
        at, seen = index * self.chunk, index * self.step
        chunk = jax.lax.dynamic_slice_in_dim(queries, at, self.chunk, 1)
        key_span = jax.lax.dynamic_slice_in_dim(keys, seen, self.span, 1)
        value_span = jax.lax.dynamic_slice_in_dim(values, seen, self.span, 1)
        query_segments = jax.lax.dynamic_slice_in_dim(query_segments, at, self.chunk, 1)
        key_segments = jax.lax.dynamic_slice_in_dim(key_segments, seen, self.span, 1)
        query_positions = self.query_start + at + jnp.arange(self.chunk)
        key_positions = self.key_start + seen + jnp.arange(self.span)
        mask = visible(query_positions, key_positions, self.window)
        mask = mask & (query_segments[:, :, None] == key_segments[:, None, :])
        return chunk, key_span, value_span, mask


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _blockwise(blocks: _Blocks, queries, keys, values, query_segments, key_segments) -> Array:
    num_chunks = queries.shape[1] // blocks.chunk

    def one(index):
        return attend(*blocks.part(index, queries, keys, values, query_segments, key_segments))

    out = jax.lax.map(one, jnp.arange(num_chunks))
    return _join(out)


def _blockwise_forward(blocks: _Blocks, queries, keys, values, query_segments, key_segments):
    arrays = (queries, keys, values, query_segments, key_segments)
    return _blockwise(blocks, queries, keys, values, query_segments, key_segments), arrays


def _blockwise_backward(blocks: _Blocks, arrays, grad):
    """Computes each chunk again; gradients of keys and values add up where they stand."""
    queries, keys, values, *_ = arrays

    def one(carry, index):
        chunk, key_span, value_span, mask = blocks.part(index, *arrays)
        grad_chunk = jax.lax.dynamic_slice_in_dim(grad, index * blocks.chunk, blocks.chunk, 1)
        attend_here = functools.partial(attend, mask=mask)
        _, pull = jax.vjp(attend_here, chunk, key_span, value_span)
        grad_query, *grad_spans = pull(grad_chunk)
        seen = index * blocks.step
        return tuple(
            _add_at(total, span, seen) for total, span in zip(carry, grad_spans, strict=True)
        ), grad_query

    zeros = tuple(jnp.zeros(x.shape, jnp.float32) for x in (keys, values))
    num_chunks = queries.shape[1] // blocks.chunk
    (grad_keys, grad_values), grad_queries = jax.lax.scan(one, zeros, jnp.arange(num_chunks))
    grad_queries = _join(grad_queries)
    return grad_queries, grad_keys.astype(keys.dtype), grad_values.astype(values.dtype), None, None


_blockwise.defvjp(_blockwise_forward, _blockwise_backward)


def _join(chunks: Array) -> Array:
    """Chunks of rows, stacked in front, as rows."""
    moved = jnp.moveaxis(chunks, 0, 1)
    return moved.reshape(moved.shape[0], -1, *moved.shape[3:])


def _add_at(total: Array, part: Array, start: Array) -> Array:
    old = jax.lax.dynamic_slice_in_dim(total, start, part.shape[1], 1)
    return jax.lax.dynamic_update_slice_in_dim(total, old + part.astype(total.dtype), start, 1)
