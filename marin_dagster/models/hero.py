"""Turns the sizes of Marin's hero model (535B parameters, 23B active) into a model.

Source: marin-community/marin issue 8435; docs/explanation/models.md says what differs.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from marin_dagster.models.config import (
    ParameterCount,
    RoutedConfig,
    attention_flops,
    refuse_below_one,
)

if TYPE_CHECKING:
    import marin_dagster.models.language_model


@dataclass(frozen=True, kw_only=True)
class HeroConfig(RoutedConfig):
    """A decoder of local layers with half-rotary positions and global layers without any.

    Every layer stores `num_kv_heads` key heads; a global one uses the first `global_kv_heads`.
    """

    global_kv_heads: int
    qk_mult: float = 1.3  # of the scores, whose queries and keys have root mean square one
    gated_norm_rank: int = 128
    conv_size: int = 4  # tokens that a short convolution sees, the token itself included

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_below_one(self, "global_kv_heads", "gated_norm_rank", "conv_size")
        if self.num_kv_heads % self.global_kv_heads:
            raise ValueError(
                f"num_kv_heads={self.num_kv_heads} is not divisible by "
                f"global_kv_heads={self.global_kv_heads}; global layers use part of the key heads"
            )
        if self.head_dim % 4:
            raise ValueError(
                f"head_dim={self.head_dim} is not divisible by 4; half of a head is turned in "
                "pairs, use a multiple of 4"
            )

    def kv_heads_of(self, layer: int) -> int:
        """Key heads that a layer uses, counted from 0."""
        return self.num_kv_heads if self.window_of(layer) is not None else self.global_kv_heads

    def parameters(self, vocab_size: int) -> ParameterCount:
        hidden, layers = self.hidden_dim, self.num_layers
        head = hidden * vocab_size
        adapters = hidden * self.num_heads + 4 * hidden * self.gated_norm_rank
        outer = 4 * hidden * self.gated_norm_rank  # the norms of embedding and head
        gains = 2 * hidden + (self.expert_latent_dim or 0)
        gains += self.conv_size * (2 * hidden + self.num_kv_heads * self.head_dim)
        active = self.matrices_in_layers + layers * (adapters + gains) + outer + 2 * hidden
        idle = self.num_experts - self.num_experts_per_token
        stored = layers * self.num_kv_heads
        unused = stored - sum(self.kv_heads_of(layer) for layer in range(layers))
        matmul = self.matrices_in_layers - unused * 2 * hidden * self.head_dim
        return ParameterCount(
            total=active + 2 * head + layers * idle * self.expert_parameters,
            active=active + 2 * head,
            matmul=matmul + layers * adapters + outer + head,
        )

    @property
    def matrices_in_layers(self) -> int:
        """Active parameters as Marin counts them: attention, router, latent, experts of a token.

        Neither embedding and head, nor gates, gated norms and convolutions.
        """
        attention = self.hidden_dim * self.head_dim * 2 * (self.num_heads + self.num_kv_heads)
        routed = self.num_experts_per_token * self.expert_parameters
        return self.num_layers * (attention + self.shared_parameters + routed)

    def flops_per_token(self, vocab_size: int, seq_len: int | None = None) -> float:
        attention = attention_flops(self, self.windows, seq_len)
        return 6.0 * self.parameters(vocab_size).matmul + attention

    def unmasked_flops_per_token(self, vocab_size: int, seq_len: int | None = None) -> float:
        """Training FLOPs as Marin publishes them: attention as if no key were masked.

        A global layer is credited the whole row and a local one its whole window, twice what
        `flops_per_token` counts for rows far longer than the window.
        """
        row = seq_len or self.seq_len
        seen = sum(min(window or row, row) for window in self.windows)
        attention = 12.0 * self.num_heads * self.head_dim * seen
        return 6.0 * self.parameters(vocab_size).matmul + attention

    def make(
        self, vocab_size: int, key: Any
    ) -> "marin_dagster.models.language_model.LanguageModel":
        from marin_dagster.models.hero_model import Hero

        return Hero(self, vocab_size, key)
