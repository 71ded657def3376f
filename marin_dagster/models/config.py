"""Turns the sizes of a decoder into a model, and into parameter and FLOP counts.

Imports nothing heavy: recipes hold a `ModelConfig`, and definitions load without JAX.
"""

import importlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
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
class RoutedConfig(ModelConfig):
    """Sizes of a decoder with local and global layers, whose tokens choose among experts.

    A local layer sees `sliding_window` tokens, the token itself included; every `global_every`-th
    layer and the last see the whole row. Without a window all are global. With
    `expert_latent_dim`, the routed experts work at that width; the router reads the full one.
    """

    expert_dim: int  # width of one expert, routed or shared
    num_experts: int
    num_experts_per_token: int
    num_shared_experts: int
    routed_scaling_factor: float = 2.5  # sum of the combine weights, as in Marin's hero run
    capacity_factor: float | None = None  # of an expert, over its even share; None: none dropped
    sender_capacity_factor: float | None = None  # of a device's peers; numbers depend on the mesh
    expert_latent_dim: int | None = None
    sliding_window: int | None = None  # tokens
    global_every: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_below_one(
            self,
            "expert_dim",
            "num_experts",
            "num_experts_per_token",
            "num_shared_experts",
            "global_every",
        )
        for name in ("expert_latent_dim", "sliding_window"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} is below 1; use None for none")
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

    def window_of(self, layer: int) -> int | None:
        """The window of a layer, counted from 0; None for a global one."""
        last = layer == self.num_layers - 1
        return None if last or (layer + 1) % self.global_every == 0 else self.sliding_window

    @property
    def windows(self) -> tuple[int | None, ...]:
        """The window of every layer."""
        return tuple(self.window_of(layer) for layer in range(self.num_layers))

    @property
    def expert_parameters(self) -> int:
        """Parameters of one routed expert."""
        return 3 * (self.expert_latent_dim or self.hidden_dim) * self.expert_dim

    @property
    def shared_parameters(self) -> int:
        """Matrices of the experts that every token of a layer uses: router, latent, shared."""
        latent = 2 * self.hidden_dim * (self.expert_latent_dim or 0)
        shared = 3 * self.hidden_dim * self.expert_dim * self.num_shared_experts
        return self.hidden_dim * self.num_experts + latent + shared


@dataclass(frozen=True, kw_only=True)
class MoEConfig(RoutedConfig):
    """The standard mixture of experts: every layer has shared and routed experts."""

    def parameters(self, vocab_size: int) -> ParameterCount:
        attention = self.hidden_dim * self.head_dim * 2 * (self.num_heads + self.num_kv_heads)
        norms = 2 * self.hidden_dim + 2 * self.head_dim + (self.expert_latent_dim or 0)
        routed = self.num_experts_per_token * self.expert_parameters
        head = self.hidden_dim * vocab_size
        matmul = self.num_layers * (attention + self.shared_parameters + routed) + head
        idle = self.num_experts - self.num_experts_per_token
        active = matmul + self.num_layers * norms + self.hidden_dim + head
        total = active + self.num_layers * idle * self.expert_parameters
        return ParameterCount(total=total, active=active, matmul=matmul)

    def flops_per_token(self, vocab_size: int, seq_len: int | None = None) -> float:
        attention = attention_flops(self, self.windows, seq_len)
        return 6.0 * self.parameters(vocab_size).matmul + attention

    def make(
        self, vocab_size: int, key: Any
    ) -> "marin_dagster.models.language_model.LanguageModel":
        from marin_dagster.models.transformer import MoELayer, Transformer

        return Transformer(self, vocab_size, key, MoELayer)


def attention_flops(
    config: ModelConfig, windows: Sequence[int | None], seq_len: int | None = None
) -> float:
    """Training FLOPs of one token's scores and mixing, over the layers of these windows.

    Of a row of S tokens and a window of W a token sees W·(1 - W/2S) on average; S/2 without one.
    """
    row = seq_len or config.seq_len
    spans = (min(window or row, row) for window in windows)
    seen = sum(span * (1 - span / (2 * row)) for span in spans)
    return 12.0 * config.num_heads * config.head_dim * seen


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
