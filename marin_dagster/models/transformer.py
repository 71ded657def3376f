"""Turns token ids into hidden states and logits: decoders of layers that attend and compute.

With experts it computes what transformers' `Dots1ForCausalLM` computes with
`first_k_dense_replace=0`, `n_group=1`, `topk_group=1` and `norm_topk_prob=True`, without them what
`LlamaForCausalLM` does; weights are stored input by output.

Shapes: B batch, S sequence, D hidden, L layers with experts, E experts, V vocabulary.
"""

from abc import abstractmethod
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from marin_dagster.models.config import ModelConfig, MoEConfig
from marin_dagster.models.dense import DenseConfig
from marin_dagster.models.language_model import LanguageModel
from marin_dagster.models.layers import Attention, KeyValues, RMSNorm, SwiGLU, normal
from marin_dagster.models.moe import MoE
from marin_dagster.models.sharding import ROWS, constrain
from marin_dagster.models.stack import apply_layers

PADDING = -1  # segment id of positions that hold no token


class Layer(eqx.Module):
    """Attention and a feed-forward part, each behind a norm and added to its input."""

    attention_norm: eqx.AbstractVar[RMSNorm]
    attention: eqx.AbstractVar[Attention]

    @abstractmethod
    def feed_forward(
        self,
        x: Float[Array, "B S D"],
        valid: Bool[Array, "B S"],
        key: PRNGKeyArray | None = None,
    ) -> tuple[Float[Array, "B S D"], dict[str, Array]]:
        """What is added after attention, and statistics of it."""

    def __call__(
        self,
        x: Float[Array, "B S D"],
        segment_ids: Int[Array, "B S"],
        key: PRNGKeyArray | None = None,
    ) -> tuple[Float[Array, "B S D"], dict[str, Array]]:
        x = x + self.attention(self.attention_norm(x), segment_ids)
        out, stats = self.feed_forward(x, segment_ids > PADDING, key)
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
        return x + self.feed_forward(x, valid)[0], cache


class MoELayer(Layer):
    """Attention and experts."""

    attention_norm: RMSNorm
    attention: Attention
    moe_norm: RMSNorm
    moe: MoE

    def __init__(self, config: MoEConfig, index: int, key: PRNGKeyArray):
        key_attention, key_moe = jax.random.split(key)
        self.attention_norm = RMSNorm(config.hidden_dim, config.norm_eps)
        self.attention = Attention(config, key_attention, config.window_of(index))
        self.moe_norm = RMSNorm(config.hidden_dim, config.norm_eps)
        self.moe = MoE(config, key_moe)

    def feed_forward(
        self,
        x: Float[Array, "B S D"],
        valid: Bool[Array, "B S"],
        key: PRNGKeyArray | None = None,
    ) -> tuple[Float[Array, "B S D"], dict[str, Array]]:
        return self.moe(self.moe_norm(x), valid, key)


class DenseLayer(Layer):
    """Attention, whose queries and keys are not normalised, and one SwiGLU."""

    attention_norm: RMSNorm
    attention: Attention
    mlp_norm: RMSNorm
    mlp: SwiGLU

    def __init__(self, config: DenseConfig, index: int, key: PRNGKeyArray):
        key_attention, key_mlp = jax.random.split(key)
        self.attention_norm = RMSNorm(config.hidden_dim, config.norm_eps)
        self.attention = Attention(config, key_attention, norm=lambda *_: eqx.nn.Identity())
        self.mlp_norm = RMSNorm(config.hidden_dim, config.norm_eps)
        self.mlp = SwiGLU(config.hidden_dim, config.intermediate_dim, key_mlp)

    def feed_forward(
        self,
        x: Float[Array, "B S D"],
        valid: Bool[Array, "B S"],
        key: PRNGKeyArray | None = None,
    ) -> tuple[Float[Array, "B S D"], dict[str, Array]]:
        return self.mlp(self.mlp_norm(x)), {}


class Transformer(LanguageModel):
    """A decoder with an untied head; `layer(config, index, key)` makes its layers."""

    embedding: Float[Array, "V D"]
    layers: tuple[Layer, ...]
    norm: RMSNorm
    head: Float[Array, "D V"]
    config: ModelConfig = eqx.field(static=True)

    def __init__(
        self,
        config: ModelConfig,
        vocab_size: int,
        key: PRNGKeyArray,
        layer: Callable[..., Layer] = MoELayer,
    ):
        key_embedding, key_head, *keys = jax.random.split(key, config.num_layers + 2)
        self.embedding = normal(key_embedding, (vocab_size, config.hidden_dim), config.hidden_dim)
        self.layers = tuple(layer(config, index, key) for index, key in enumerate(keys))
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
        x, stats = apply_layers(self.layers, x, segment_ids, key)
        return self.norm(x), stats

    def empty_cache(self, batch_size: int, length: int) -> tuple[KeyValues, ...]:
        return tuple(layer.attention.empty_cache(batch_size, length) for layer in self.layers)

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
