"""Turns the sizes of a dense decoder into a model that `LlamaForCausalLM` can load."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from marin_dagster.models.config import (
    ModelConfig,
    ParameterCount,
    attention_flops,
    refuse_below_one,
)

if TYPE_CHECKING:
    import marin_dagster.models.language_model


@dataclass(frozen=True, kw_only=True)
class DenseConfig(ModelConfig):
    """A decoder of Llama's kind: RMSNorm, grouped queries, rotary positions, SwiGLU."""

    intermediate_dim: int  # width of the SwiGLU

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_below_one(self, "intermediate_dim")

    def parameters(self, vocab_size: int) -> ParameterCount:
        attention = self.hidden_dim * self.head_dim * 2 * (self.num_heads + self.num_kv_heads)
        mlp = 3 * self.hidden_dim * self.intermediate_dim
        head = self.hidden_dim * vocab_size
        matmul = self.num_layers * (attention + mlp) + head
        norms = (2 * self.num_layers + 1) * self.hidden_dim
        total = matmul + norms + head
        return ParameterCount(total=total, active=total, matmul=matmul)

    def flops_per_token(self, vocab_size: int, seq_len: int | None = None) -> float:
        attention = attention_flops(self, (None,) * self.num_layers, seq_len)
        return 6.0 * self.parameters(vocab_size).matmul + attention

    def make(
        self, vocab_size: int, key: Any
    ) -> "marin_dagster.models.language_model.LanguageModel":
        from marin_dagster.models.transformer import DenseLayer, Transformer

        return Transformer(self, vocab_size, key, DenseLayer)
