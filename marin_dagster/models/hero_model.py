"""Turns token ids into hidden states the way Marin's hero model does.

Shapes: B batch, S sequence, D hidden, H heads, N key heads, C head dim, R rank, W convolution size.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from marin_dagster.models.attention import attend, causal_attention, visible
from marin_dagster.models.hero import HeroConfig
from marin_dagster.models.language_model import LanguageModel
from marin_dagster.models.layers import KeyValues, RMSNorm, normal, rope, row_positions
from marin_dagster.models.moe import MoE
from marin_dagster.models.sharding import ROWS, constrain
from marin_dagster.models.stack import apply_layers
from marin_dagster.models.transformer import PADDING


class GatedNorm(eqx.Module):
    """An RMSNorm whose output n is multiplied by σ(silu(n·down)·up)."""

    norm: RMSNorm
    down: Float[Array, "D R"]
    up: Float[Array, "R D"]

    def __init__(self, config: HeroConfig, key: PRNGKeyArray):
        key_down, key_up = jax.random.split(key)
        hidden, rank = config.hidden_dim, config.gated_norm_rank
        self.norm = RMSNorm(hidden, config.norm_eps)
        self.down = normal(key_down, (hidden, rank), hidden)
        self.up = normal(key_up, (rank, hidden), rank)

    def __call__(self, x: Float[Array, "B S D"]) -> Float[Array, "B S D"]:
        x = self.norm(x)
        return x * jax.nn.sigmoid(jax.nn.silu(x @ self.down) @ self.up)


class ShortConv(eqx.Module):
    """Mixes each channel with its W - 1 earlier tokens of the same segment; begins as identity."""

    weight: Float[Array, "W D"]

    def __init__(self, size: int, dim: int):
        self.weight = jnp.zeros((size, dim)).at[0].set(1.0)

    def __call__(
        self, x: Float[Array, "B S D"], segment_ids: Int[Array, "B S"]
    ) -> Float[Array, "B S D"]:
        out = self.weight[0] * x
        for back in range(1, min(self.weight.shape[0], x.shape[1])):
            same = segment_ids[:, back:] == segment_ids[:, :-back]
            earlier = jnp.where(same[:, :, None], x[:, :-back], 0)
            out = out + self.weight[back] * jnp.pad(earlier, ((0, 0), (back, 0), (0, 0)))
        return out

    def empty_history(self, batch_size: int) -> Float[Array, "B past D"]:
        """What came before a row begins: zeros, which add nothing."""
        size, dim = self.weight.shape
        return jnp.zeros((batch_size, size - 1, dim), self.weight.dtype)

    def decode(
        self,
        x: Float[Array, "B S D"],
        valid: Bool[Array, "B S"],
        history: Float[Array, "B past D"],
    ) -> tuple[Float[Array, "B S D"], Float[Array, "B past D"]]:
        """Reads on after the history; valid tokens stand in front of the others."""
        past, length = history.shape[1], x.shape[1]
        known = jnp.concatenate([history, x], axis=1)
        taps = [known[:, past - back : past - back + length] for back in range(past + 1)]
        out = sum(weight * tap for weight, tap in zip(self.weight, taps, strict=True))
        kept = valid.sum(1)[:, None] + jnp.arange(past)
        return jnp.asarray(out), jnp.take_along_axis(known, kept[:, :, None], axis=1)


class HeroCache(eqx.Module):
    """What a layer remembers: keys and values, and the last inputs of its convolutions."""

    read: KeyValues
    key: Float[Array, "B past NC"]
    attention: Float[Array, "B past D"]
    moe: Float[Array, "B past D"]


class HeroAttention(eqx.Module):
    """Attention without the token's own value in its result, gated by head.

    Queries and keys have root mean square one. In a layer with a window half of each head is
    turned by position; without one nothing is.
    """

    query: Float[Array, "D HC"]
    key: Float[Array, "D NC"]
    value: Float[Array, "D NC"]
    out: Float[Array, "HC D"]
    gate: Float[Array, "D H"]
    key_conv: ShortConv
    config: HeroConfig = eqx.field(static=True)
    window: int | None = eqx.field(static=True)
    num_kv_heads: int = eqx.field(static=True)

    def __init__(self, config: HeroConfig, index: int, key: PRNGKeyArray):
        keys = jax.random.split(key, 4)
        hidden, heads = config.hidden_dim, config.num_heads * config.head_dim
        key_heads = config.num_kv_heads * config.head_dim
        self.query = normal(keys[0], (hidden, heads), hidden)
        self.key = normal(keys[1], (hidden, key_heads), hidden)
        self.value = normal(keys[2], (hidden, key_heads), hidden)
        self.out = normal(keys[3], (heads, hidden), heads)
        self.gate = jnp.zeros((hidden, config.num_heads))
        self.key_conv = ShortConv(config.conv_size, key_heads)
        self.config = config
        self.window = config.window_of(index)
        self.num_kv_heads = config.kv_heads_of(index)

    def __call__(
        self, x: Float[Array, "B S D"], segment_ids: Int[Array, "B S"]
    ) -> Float[Array, "B S D"]:
        keys = self.key_conv(x @ self.key, segment_ids)
        queries, keys, values = self._heads(x, keys, row_positions(x))
        mixed = causal_attention(queries, keys, values, segment_ids, self.window)
        return self._finish(x, mixed, values)

    def empty_cache(self, batch_size: int, length: int) -> KeyValues:
        shape = (batch_size, length, self.num_kv_heads, self.config.head_dim)
        zeros = jnp.zeros(shape, self.key.dtype)
        return KeyValues(zeros, zeros)

    def decode(
        self,
        x: Float[Array, "B S D"],
        positions: Int[Array, "B S"],
        valid: Bool[Array, "B S"],
        cache: HeroCache,
    ) -> tuple[Float[Array, "B S D"], KeyValues, Float[Array, "B past NC"]]:
        keys, history = self.key_conv.decode(x @ self.key, valid, cache.key)
        queries, keys, values = self._heads(x, keys, positions)
        read = cache.read.write(positions, keys, values)
        mask = visible(positions, jnp.arange(read.keys.shape[1])[None], self.window)
        mixed = attend(queries, read.keys, read.values, mask)
        return self._finish(x, mixed, values), read, history

    def _heads(self, x: Array, keys: Array, positions: Int[Array, "#B S"]):
        shape = (*x.shape[:2], -1, self.config.head_dim)
        queries = self._place((x @ self.query).reshape(shape), positions) * self.config.qk_mult
        keys = keys.reshape(shape)[:, :, : self.num_kv_heads]
        values = (x @ self.value).reshape(shape)[:, :, : self.num_kv_heads]
        return queries, self._place(keys, positions), values

    def _place(self, x: Float[Array, "B S heads C"], positions: Int[Array, "#B S"]) -> Array:
        """Normalises heads and, in a local layer, turns their first half."""
        x = root_mean_square_one(x, self.config.norm_eps)
        if self.window is None:
            return x
        turned, rest = jnp.split(x, 2, axis=-1)
        turned = rope(turned, positions, self.config.rope_theta)
        return jnp.concatenate([turned, rest], axis=-1)

    def _finish(self, x: Array, mixed: Float[Array, "B S HC"], values: Array) -> Array:
        heads = mixed.reshape(*mixed.shape[:2], self.num_kv_heads, -1, self.config.head_dim)
        heads = exclude_own(heads, values[:, :, :, None])
        gate = 2 * jax.nn.sigmoid(x @ self.gate)
        heads = heads.reshape(*gate.shape, -1) * gate[..., None]
        return heads.reshape(mixed.shape) @ self.out


class HeroLayer(eqx.Module):
    """Attention and experts, each behind a gated norm and before a short convolution."""

    attention_norm: GatedNorm
    attention: HeroAttention
    attention_conv: ShortConv
    moe_norm: GatedNorm
    moe: MoE
    moe_conv: ShortConv

    def __init__(self, config: HeroConfig, index: int, key: PRNGKeyArray):
        keys = jax.random.split(key, 4)
        self.attention_norm = GatedNorm(config, keys[0])
        self.attention = HeroAttention(config, index, keys[1])
        self.attention_conv = ShortConv(config.conv_size, config.hidden_dim)
        self.moe_norm = GatedNorm(config, keys[2])
        self.moe = MoE(config, keys[3])
        self.moe_conv = ShortConv(config.conv_size, config.hidden_dim)

    def __call__(
        self,
        x: Float[Array, "B S D"],
        segment_ids: Int[Array, "B S"],
        key: PRNGKeyArray | None = None,
    ) -> tuple[Float[Array, "B S D"], dict[str, Array]]:
        attended = self.attention(self.attention_norm(x), segment_ids)
        x = x + self.attention_conv(attended, segment_ids)
        out, stats = self.moe(self.moe_norm(x), segment_ids > PADDING, key)
        return x + self.moe_conv(out, segment_ids), stats

    def empty_cache(self, batch_size: int, length: int) -> HeroCache:
        return HeroCache(
            self.attention.empty_cache(batch_size, length),
            self.attention.key_conv.empty_history(batch_size),
            self.attention_conv.empty_history(batch_size),
            self.moe_conv.empty_history(batch_size),
        )

    def decode(
        self,
        x: Float[Array, "B S D"],
        positions: Int[Array, "B S"],
        valid: Bool[Array, "B S"],
        cache: HeroCache,
    ) -> tuple[Float[Array, "B S D"], HeroCache]:
        inner = self.attention_norm(x)
        attended, read, key_history = self.attention.decode(inner, positions, valid, cache)
        attended, attention_history = self.attention_conv.decode(attended, valid, cache.attention)
        x = x + attended
        out, moe_history = self.moe_conv.decode(
            self.moe(self.moe_norm(x), valid)[0], valid, cache.moe
        )
        return x + out, HeroCache(read, key_history, attention_history, moe_history)


class Hero(LanguageModel):
    """The hero's decoder: norms on the embeddings and before an untied head."""

    embedding: Float[Array, "V D"]
    embedding_norm: GatedNorm
    layers: tuple[HeroLayer, ...]
    norm: GatedNorm
    head: Float[Array, "D V"]
    config: HeroConfig = eqx.field(static=True)

    def __init__(self, config: HeroConfig, vocab_size: int, key: PRNGKeyArray):
        keys = jax.random.split(key, config.num_layers + 4)
        hidden = config.hidden_dim
        self.embedding = normal(keys[0], (vocab_size, hidden), hidden)
        self.embedding_norm = GatedNorm(config, keys[1])
        self.layers = tuple(HeroLayer(config, index, key) for index, key in enumerate(keys[4:]))
        self.norm = GatedNorm(config, keys[2])
        self.head = normal(keys[3], (hidden, vocab_size), hidden)
        self.config = config

    def __call__(
        self,
        tokens: Int[Array, "B S"],
        segment_ids: Int[Array, "B S"] | None = None,
        key: PRNGKeyArray | None = None,
    ) -> tuple[Float[Array, "B S D"], dict[str, Array]]:
        if segment_ids is None:
            segment_ids = jnp.zeros_like(tokens)
        x = constrain(jnp.take(self.embedding, tokens, axis=0), ROWS, "context", None)
        x, stats = apply_layers(self.layers, self.embedding_norm(x), segment_ids, key)
        return self.norm(x), stats

    def empty_cache(self, batch_size: int, length: int) -> tuple[HeroCache, ...]:
        return tuple(layer.empty_cache(batch_size, length) for layer in self.layers)

    def decode(
        self,
        tokens: Int[Array, "B S"],
        positions: Int[Array, "B S"],
        valid: Bool[Array, "B S"],
        cache: tuple[HeroCache, ...],
    ) -> tuple[Float[Array, "B S D"], tuple[HeroCache, ...]]:
        x = self.embedding_norm(jnp.take(self.embedding, tokens, axis=0))
        caches = []
        for layer, layer_cache in zip(self.layers, cache, strict=True):
            x, layer_cache = layer.decode(x, positions, valid, layer_cache)
            caches.append(layer_cache)
        return self.norm(x), tuple(caches)


def root_mean_square_one(x: Float[Array, "*batch C"], eps: float) -> Float[Array, "*batch C"]:
    """RMSNorm without a gain."""
    x32 = x.astype(jnp.float32)
    return (x32 * jax.lax.rsqrt(jnp.mean(x32 * x32, -1, keepdims=True) + eps)).astype(x.dtype)


def exclude_own(
    mixed: Float[Array, "*batch C"], own: Float[Array, "*#batch C"]
) -> Float[Array, "*batch C"]:
    """y - (y·v/v·v)·v: what attention found besides the direction of the token's own value."""
    size = jnp.sum(own * own, axis=-1, keepdims=True)
    along = jnp.sum(mixed * own, axis=-1, keepdims=True) / jnp.maximum(size, 1e-20)
    return mixed - along * own
