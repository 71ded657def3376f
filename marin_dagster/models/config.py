"""Turns the sizes of a decoder into a model, and into parameter and FLOP counts.

Imports nothing heavy: recipes hold a `ModelConfig`, and definitions load without JAX.
"""

import importlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import marin_dagster.models.language_model


class ParameterCount(NamedTuple):
    """Parameters of a model: all, those one token uses, and those one token multiplies with."""

    total: int
    active: int  # with the embedding
    matmul: int  # active, without the embedding: the N of 6·N·T


@dataclass(frozen=True, kw_only=True)
class ModelConfig(ABC):
    """Sizes that every architecture has; a subclass adds its own and makes its model.

    Subclasses are frozen keyword-only dataclasses of literals, in a module without JAX: a
    checkpoint names the class by its import path. The vocabulary size is the tokenizer's and comes
    when a model is made.
    """

    hidden_dim: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    seq_len: int  # tokens per row
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-6

    def __post_init__(self) -> None:
        refuse_below_one(
            self, "hidden_dim", "num_layers", "num_heads", "num_kv_heads", "head_dim", "seq_len"
        )
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_heads={self.num_heads} is not divisible by num_kv_heads={self.num_kv_heads}; "
                "every group of query heads shares one key head"
            )
        if self.head_dim % 2:
            raise ValueError(
                f"head_dim={self.head_dim} is odd; rotary embedding turns pairs, use an even number"
            )

    @abstractmethod
    def parameters(self, vocab_size: int) -> ParameterCount:
        """Counts parameters; the router's bias, which no gradient trains, is not one."""

    @abstractmethod
    def flops_per_token(self, vocab_size: int, seq_len: int | None = None) -> float:
        """Training FLOPs of one token: 6 per matmul parameter, and attention by its mask.

        A causal mask counts half, a window what it lets through. `seq_len` is the rows', by
        default the configuration's.
        """

    @abstractmethod
    def make(
        self, vocab_size: int, key: Any
    ) -> "marin_dagster.models.language_model.LanguageModel":
        """Makes a model with random weights from a JAX key."""


@dataclass(frozen=True, kw_only=True)
class MoEConfig(ModelConfig):
    """A decoder in which every layer has shared and routed experts."""

    expert_dim: int  # width of one expert, routed or shared
    num_experts: int
    num_experts_per_token: int
    num_shared_experts: int
    routed_scaling_factor: float = 2.5  # sum of the combine weights, as in Marin's hero run
    capacity_factor: float | None = None  # of an expert, over its even share; None: none dropped
    sender_capacity_factor: float | None = None  # of a device's peers; numbers depend on the mesh

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_below_one(
            self, "expert_dim", "num_experts", "num_experts_per_token", "num_shared_experts"
        )
        if self.num_experts_per_token >= self.num_experts:
            raise ValueError(
                f"num_experts_per_token={self.num_experts_per_token} is not below "
                f"num_experts={self.num_experts}; a router needs something to choose from"
            )
        for name in ("capacity_factor", "sender_capacity_factor"):
            factor = getattr(self, name)
            if factor is not None and not factor > 0:
                raise ValueError(
                    f"{name}={factor} is not positive; give the capacity over an even share, as "
                    "1.25, or None to drop nothing"
                )

    def parameters(self, vocab_size: int) -> ParameterCount:
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

    def flops_per_token(self, vocab_size: int, seq_len: int | None = None) -> float:
        row = seq_len or self.seq_len
        attention = 6 * self.num_layers * self.num_heads * self.head_dim * row
        return float(6 * self.parameters(vocab_size).matmul + attention)

    def make(
        self, vocab_size: int, key: Any
    ) -> "marin_dagster.models.language_model.LanguageModel":
        from marin_dagster.models.transformer import Transformer

        return Transformer(self, vocab_size, key)


def architecture_of(config: ModelConfig) -> str:
    """The import path of a configuration's class, as a checkpoint stores it."""
    return f"{type(config).__module__}.{type(config).__qualname__}"


def config_of(architecture: str, fields: Mapping[str, Any]) -> ModelConfig:
    """Makes the configuration that a checkpoint stores: its class by import path, its fields.

    Raises ValueError when there is no such class, when it is not a `ModelConfig`, and when the
    fields are not its own.
    """
    module, _, name = architecture.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(
            f"architecture={architecture!r} cannot be imported ({error}); install the package "
            "that the model was trained with"
        ) from error
    if not (isinstance(found, type) and issubclass(found, ModelConfig)):
        raise ValueError(
            f"architecture={architecture!r} is not a subclass of ModelConfig; a checkpoint names "
            "the class of its model's configuration"
        )
    try:
        return found(**fields)
    except TypeError as error:
        raise ValueError(
            f"architecture={architecture!r} does not take the stored fields ({error}); use the "
            "version that the model was trained with"
        ) from error


def refuse_below_one(config: ModelConfig, *names: str) -> None:
    """Raises ValueError for a field that is not positive."""
    for name in names:
        if getattr(config, name) < 1:
            raise ValueError(f"{name}={getattr(config, name)} is below 1; give a positive number")
