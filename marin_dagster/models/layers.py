"""Turns hidden states into hidden states: normalisation, rotary positions, attention, SwiGLU.

Shapes: B batch, S sequence, D hidden, H heads, N key heads, C head dim, F expert dim.
"""

import math
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from marin_dagster.models.attention import attend, causal_attention, visible
from marin_dagster.models.config import ModelConfig

PIECE = 1 << 16  # random numbers drawn at once
LARGE = 1 << 23  # values of a weight that is drawn in one piece, by a program of its own


def normal(key: PRNGKeyArray, shape: tuple[int, ...], fan_in: int) -> Array:
    """Draws weights from a normal cut at three deviations, with deviation 0.5/√fan_in.

    Drawn in pieces of one size, so that one small program is compiled for all shapes; a large one
    at once, which a mesh can divide.
    """
    size = math.prod(shape)
    if size >= LARGE:
        drawn = jax.random.truncated_normal(key, -3.0, 3.0, shape, jnp.float32)
        return 0.5 / math.sqrt(fan_in) * drawn
    keys = jax.random.split(key, -(-size // PIECE))
    flat = jnp.concatenate([_piece(piece_key) for piece_key in keys])[:size]
    return 0.5 / math.sqrt(fan_in) * flat.reshape(shape)


@jax.jit
def _piece(key: PRNGKeyArray) -> Array:
    return jax.random.truncated_normal(key, -3.0, 3.0, (PIECE,), jnp.float32)


class RMSNorm(eqx.Module):
    """Scales the last axis to root mean square one (Zhang and Sennrich 2019)."""

    weight: Float[Array, " D"]
    eps: float = eqx.field(static=True)

    def __init__(self, dim: int, eps: float):
        self.weight = jnp.ones(dim)
        self.eps = eps

    def __call__(self, x: Float[Array, "*batch D"]) -> Float[Array, "*batch D"]:
        x32 = x.astype(jnp.float32)
        scale = jax.lax.rsqrt(jnp.mean(x32 * x32, axis=-1, keepdims=True) + self.eps)
        return (self.weight * x32 * scale).astype(x.dtype)


class SwiGLU(eqx.Module):
    """Two projections, one gating the other through SiLU, and one back (Shazeer 2020)."""

    gate_up: Float[Array, "D twoF"]
    down: Float[Array, "F D"]

    def __init__(self, hidden_dim: int, intermediate_dim: int, key: PRNGKeyArray):
        key_up, key_down = jax.random.split(key)
        self.gate_up = normal(key_up, (hidden_dim, 2 * intermediate_dim), hidden_dim)
        self.down = normal(key_down, (intermediate_dim, hidden_dim), intermediate_dim)

    def __call__(self, x: Float[Array, "*batch D"]) -> Float[Array, "*batch D"]:
        gate, up = jnp.split(x @ self.gate_up, 2, axis=-1)
        return (jax.nn.silu(gate) * up) @ self.down


def rope(
    x: Float[Array, "B S heads C"], positions: Int[Array, "#B S"], theta: float
) -> Float[Array, "B S heads C"]:
    """Turns the pairs (i, i + C/2) of every head by position · theta^(-2i/C) (Su et al. 2021).

    Sines and cosines are made in a loop of two rounds, which XLA does not fuse with what reads
    them: fused, it computes them again for every head of every row, which takes longer than all
    the rest.
    """
    half = x.shape[-1] // 2
    frequency = theta ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angle = positions[:, :, None, None].astype(jnp.float32) * frequency
    sin, cos = jax.lax.map(
        lambda is_cos: jax.lax.cond(is_cos, jnp.cos, jnp.sin, angle), jnp.array([False, True])
    )
    one, two = x[..., :half].astype(jnp.float32), x[..., half:].astype(jnp.float32)
    return jnp.concatenate([one * cos - two * sin, two * cos + one * sin], -1).astype(x.dtype)


class KeyValues(eqx.Module):
    """Keys and values of the tokens that one layer has read, for decoding."""

    keys: Float[Array, "B S N C"]
    values: Float[Array, "B S N C"]

    def write(
        self,
        positions: Int[Array, "B Q"],
        keys: Float[Array, "B Q N C"],
        values: Float[Array, "B Q N C"],
    ) -> "KeyValues":
        """Puts keys and values of new tokens at their positions."""
        rows = jnp.arange(positions.shape[0])[:, None]
        return KeyValues(
            self.keys.at[rows, positions].set(keys), self.values.at[rows, positions].set(values)
        )


class Attention(eqx.Module):
    """Causal attention with grouped queries and normalised queries and keys.

    With a window, a token sees that many tokens, itself included. `norm` makes what queries and
    keys go through, head by head, before rotation.
    """

    query: Float[Array, "D HC"]
    key: Float[Array, "D NC"]
    value: Float[Array, "D NC"]
    out: Float[Array, "HC D"]
    query_norm: RMSNorm | eqx.nn.Identity
    key_norm: RMSNorm | eqx.nn.Identity
    head_dim: int = eqx.field(static=True)
    rope_theta: float = eqx.field(static=True)
    window: int | None = eqx.field(static=True)

    def __init__(
        self,
        config: ModelConfig,
        key: PRNGKeyArray,
        window: int | None = None,
        norm: Callable[[int, float], RMSNorm | eqx.nn.Identity] = RMSNorm,
    ):
        keys = jax.random.split(key, 4)
        hidden, heads = config.hidden_dim, config.num_heads * config.head_dim
        key_heads = config.num_kv_heads * config.head_dim
        self.query = normal(keys[0], (hidden, heads), hidden)
        self.key = normal(keys[1], (hidden, key_heads), hidden)
        self.value = normal(keys[2], (hidden, key_heads), hidden)
        self.out = normal(keys[3], (heads, hidden), heads)
        self.query_norm = norm(config.head_dim, config.norm_eps)
        self.key_norm = norm(config.head_dim, config.norm_eps)
        self.head_dim = config.head_dim
        self.rope_theta = config.rope_theta
        self.window = window

    def __call__(
        self, x: Float[Array, "B S D"], segment_ids: Int[Array, "B S"]
    ) -> Float[Array, "B S D"]:
        """Attends to earlier tokens of the same segment."""
        queries, keys, values = self._project(x, row_positions(x))
        return causal_attention(queries, keys, values, segment_ids, self.window) @ self.out

    def empty_cache(self, batch_size: int, length: int) -> KeyValues:
        shape = (batch_size, length, self.key.shape[1] // self.head_dim, self.head_dim)
        zeros = jnp.zeros(shape, self.key.dtype)
        return KeyValues(zeros, zeros)

    def decode(
        self, x: Float[Array, "B S D"], positions: Int[Array, "B S"], cache: KeyValues
    ) -> tuple[Float[Array, "B S D"], KeyValues]:
        """Attends to the cache and the new tokens, which it writes at `positions`."""
        queries, keys, values = self._project(x, positions)
        cache = cache.write(positions, keys, values)
        mask = visible(positions, jnp.arange(cache.keys.shape[1])[None], self.window)
        return attend(queries, cache.keys, cache.values, mask) @ self.out, cache

    def _project(self, x: Float[Array, "B S D"], positions: Int[Array, "#B S"]):
        heads = (*x.shape[:2], -1, self.head_dim)
        queries = self.query_norm((x @ self.query).reshape(heads))
        keys = self.key_norm((x @ self.key).reshape(heads))
        values = (x @ self.value).reshape(heads)
        return (
            rope(queries, positions, self.rope_theta),
            rope(keys, positions, self.rope_theta),
            values,
        )


def row_positions(x: Float[Array, "B S D"]) -> Int[Array, "1 S"]:
    """0, 1, 2, … for all rows."""
    return jnp.arange(x.shape[1])[None]
