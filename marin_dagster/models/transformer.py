"""Turns token ids into hidden states and logits: a decoder whose every layer is a mixture.

It computes what transformers' `Dots1ForCausalLM` computes with `first_k_dense_replace=0`,
`n_group=1`, `topk_group=1` and `norm_topk_prob=True`; weights are stored input by output.

Shapes: B batch, S sequence, D hidden, L layers, E experts, V vocabulary.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from marin_dagster.models.config import MoEConfig
from marin_dagster.models.language_model import LanguageModel
from marin_dagster.models.layers import Attention, KeyValues, RMSNorm, normal
from marin_dagster.models.moe import MoE
from marin_dagster.models.sharding import ROWS, constrain

PADDING = -1  # segment id of positions that hold no token


class Layer(eqx.Module):
    """Attention and experts, each behind a norm and added to its input."""

    attention_norm: RMSNorm
    attention: Attention
    moe_norm: RMSNorm
    moe: MoE

    def __init__(self, config: MoEConfig, key: PRNGKeyArray):
        key_attention, key_moe = jax.random.split(key)
        self.attention_norm = RMSNorm(config.hidden_dim, config.norm_eps)
        self.attention = Attention(config, key_attention)
        self.moe_norm = RMSNorm(config.hidden_dim, config.norm_eps)
        self.moe = MoE(config, key_moe)

    def __call__(
        self,
        x: Float[Array, "B S D"],
        segment_ids: Int[Array, "B S"],
        key: PRNGKeyArray | None = None,
    ) -> tuple[Float[Array, "B S D"], dict[str, Array]]:
        x = x + self.attention(self.attention_norm(x), segment_ids)
        out, stats = self.moe(self.moe_norm(x), segment_ids > PADDING, key)
        return x + out, stats

    def decode(
        self,
        x: Float[Array, "B S D"],
        positions: Int[Array, "B S"],
        valid: Bool[Array, "B S"],
        cache: KeyValues,
    ) -> tuple[Float[Array, "B S D"], KeyValues]:
        attended, cache = self.attention.decode(self.attention_norm(x), positions, cache)
        x = x + attended
        return x + self.moe(self.moe_norm(x), valid)[0], cache


class Transformer(LanguageModel):
    """A decoder with an untied head."""

    embedding: Float[Array, "V D"]
    layers: tuple[Layer, ...]
    norm: RMSNorm
    head: Float[Array, "D V"]
    config: MoEConfig = eqx.field(static=True)

    def __init__(self, config: MoEConfig, vocab_size: int, key: PRNGKeyArray):
        key_embedding, key_head, *keys = jax.random.split(key, config.num_layers + 2)
        self.embedding = normal(key_embedding, (vocab_size, config.hidden_dim), config.hidden_dim)
        self.layers = tuple(Layer(config, key) for key in keys)
        self.norm = RMSNorm(config.hidden_dim, config.norm_eps)
        self.head = normal(key_head, (config.hidden_dim, vocab_size), config.hidden_dim)
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
        stats = []
        for number, layer in enumerate(self.layers):
            layer_key = None if key is None else jax.random.fold_in(key, number)
            x, layer_stats = layer(x, segment_ids, layer_key)
            stats.append(layer_stats)
        return self.norm(x), jax.tree.map(lambda *rows: jnp.stack(rows), *stats)

    def empty_cache(self, batch_size: int, length: int) -> tuple[KeyValues, ...]:
        shape = (batch_size, length, self.config.num_kv_heads, self.config.head_dim)
        zeros = jnp.zeros(shape, self.embedding.dtype)
        return tuple(KeyValues(zeros, zeros) for _ in self.layers)

    def decode(
        self,
        tokens: Int[Array, "B S"],
        positions: Int[Array, "B S"],
        valid: Bool[Array, "B S"],
        cache: tuple[KeyValues, ...],
    ) -> tuple[Float[Array, "B S D"], tuple[KeyValues, ...]]:
        x = jnp.take(self.embedding, tokens, axis=0)
        caches = []
        for layer, layer_cache in zip(self.layers, cache, strict=True):
            x, layer_cache = layer.decode(x, positions, valid, layer_cache)
            caches.append(layer_cache)
        return self.norm(x), tuple(caches)
