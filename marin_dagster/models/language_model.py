"""What every language model is: token ids turned into hidden states, and those into logits.

Shapes: B batch, S sequence, D hidden, V vocabulary.
"""

from abc import abstractmethod
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from marin_dagster.models.config import ModelConfig


class LanguageModel(eqx.Module):
    """A causal decoder: training, evaluation and sampling know no more of a model than this."""

    embedding: eqx.AbstractVar[Float[Array, "V D"]]
    layers: eqx.AbstractVar[tuple[eqx.Module, ...]]  # read one after the other
    head: eqx.AbstractVar[Float[Array, "D V"]]
    config: eqx.AbstractVar[ModelConfig]

    @property
    def vocab_size(self) -> int:
        return self.embedding.shape[0]

    @abstractmethod
    def __call__(
        self,
        tokens: Int[Array, "B S"],
        segment_ids: Int[Array, "B S"] | None = None,
        key: PRNGKeyArray | None = None,
    ) -> tuple[Float[Array, "B S D"], dict[str, Array]]:
        """Returns hidden states and the routers' statistics, stacked over the layers with experts.

        Tokens see earlier tokens of their own segment; segment -1 is padding. The key draws which
        tokens an expert with a capacity drops; without one none are.
        """

    def logits(self, hidden: Float[Array, "B S D"]) -> Float[Array, "B S V"]:
        return (hidden @ self.head).astype(jnp.float32)

    @abstractmethod
    def empty_cache(self, batch_size: int, length: int) -> Any:
        """Makes room for `length` tokens per row."""

    @abstractmethod
    def decode(
        self,
        tokens: Int[Array, "B S"],
        positions: Int[Array, "B S"],
        valid: Bool[Array, "B S"],
        cache: Any,
    ) -> tuple[Float[Array, "B S D"], Any]:
        """Reads the next tokens of every row after those in the cache."""
