"""Turns the sizes of a mixture-of-experts decoder into parameter and FLOP counts.

Imports nothing heavy: recipes hold a `ModelConfig`, and definitions load without JAX.
"""

from dataclasses import dataclass
from typing import NamedTuple


class ParameterCount(NamedTuple):
    """Parameters of a model: all, those one token uses, and those one token multiplies with."""

    total: int
    active: int  # with the embedding
    matmul: int  # active, without the embedding: the N of 6·N·T


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Sizes of a decoder in which every layer has shared and routed experts.

    The vocabulary size is the tokenizer's and comes when a model is made.
    """

    hidden_dim: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    expert_dim: int  # width of one expert, routed or shared
    num_experts: int
    num_experts_per_token: int
    num_shared_experts: int
    seq_len: int  # tokens per row
    routed_scaling_factor: float = 2.5  # sum of the combine weights, as in Marin's hero run
    capacity_factor: float | None = None  # of an expert, over its even share; None: none dropped
    sender_capacity_factor: float | None = None  # of a device's peers; numbers depend on the mesh
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-6

    def __post_init__(self) -> None:
        for name in _POSITIVE:
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} is below 1; give a positive number")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_heads={self.num_heads} is not divisible by num_kv_heads={self.num_kv_heads}; "
                "every group of query heads shares one key head"
            )
        if self.head_dim % 2:
            raise ValueError(
                f"head_dim={self.head_dim} is odd; rotary embedding turns pairs, use an even number"
            )
        if self.num_experts_per_token >= self.num_experts:
            raise ValueError(
                f"num_experts_per_token={self.num_experts_per_token} is not below "
                f"num_experts={self.num_experts}; a router needs something to choose from"
            )

    def parameters(self, vocab_size: int) -> ParameterCount:
        """Counts parameters; the router's bias, which no gradient trains, is not one."""
        attention = self.hidden_dim * self.head_dim * 2 * (self.num_heads + self.num_kv_heads)
        norms = 2 * self.hidden_dim + 2 * self.head_dim
        expert = 3 * self.hidden_dim * self.expert_dim
        router = self.hidden_dim * self.num_experts
        head = self.hidden_dim * vocab_size
        experts_used = self.num_shared_experts + self.num_experts_per_token
        matmul = self.num_layers * (attention + router + experts_used * expert) + head
        idle = self.num_layers * (self.num_experts - self.num_experts_per_token) * expert
        active = matmul + self.num_layers * norms + self.hidden_dim + head
        return ParameterCount(total=active + idle, active=active, matmul=matmul)

    def flops_per_token(self, vocab_size: int) -> float:
        """Training FLOPs of one token: 6 per matmul parameter, and causal attention at half."""
        attention = 6 * self.num_layers * self.num_heads * self.head_dim * self.seq_len
        return float(6 * self.parameters(vocab_size).matmul + attention)


_POSITIVE = (
    "hidden_dim",
    "num_layers",
    "num_heads",
    "num_kv_heads",
    "head_dim",
    "expert_dim",
    "num_experts",
    "num_experts_per_token",
    "num_shared_experts",
    "seq_len",
)

MoEConfig = ModelConfig
