"""Turns hidden states into each token's experts, and their load into the next step's bias.

Shapes: T tokens, D hidden, E experts, K experts per token.
"""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from marin_dagster.models.config import MoEConfig
from marin_dagster.models.layers import normal

BISECTIONS = 30  # halvings of the margin's range, to float32 resolution


class Router(eqx.Module):
    """Chooses K experts per token by sigmoid score plus bias, and balances them by the bias.

    The bias is state, not a parameter: no gradient reaches it. Training replaces it after every
    step by what would have balanced that step's tokens (Marin's quantile balancing), and
    evaluation uses the one that the checkpoint holds.
    """

    weight: Float[Array, "D E"]
    bias: Float[Array, " E"]
    num_experts_per_token: int = eqx.field(static=True)
    scaling_factor: float = eqx.field(static=True)

    def __init__(self, config: MoEConfig, key: PRNGKeyArray):
        shape = (config.hidden_dim, config.num_experts)
        self.weight = normal(key, shape, config.hidden_dim)
        self.bias = jnp.zeros(config.num_experts)
        self.num_experts_per_token = config.num_experts_per_token
        self.scaling_factor = config.routed_scaling_factor

    def __call__(
        self, x: Float[Array, "T D"], valid: Bool[Array, " T"]
    ) -> tuple[Float[Array, "T K"], Int[Array, "T K"], dict[str, Array]]:
        """Returns combine weights, chosen experts, and statistics over the valid tokens."""
        logits = jnp.matmul(x.astype(jnp.float32), self.weight, precision=jax.lax.Precision.HIGHEST)
        scores = jax.nn.sigmoid(logits)
        biased = jax.lax.stop_gradient(scores + self.bias)
        ranked, order = jax.lax.top_k(biased, self.num_experts_per_token + 1)
        chosen = order[:, :-1]
        weights = jnp.take_along_axis(scores, chosen, axis=-1)
        weights = weights / (weights.sum(-1, keepdims=True) + 1e-20) * self.scaling_factor
        stats = router_statistics(jax.lax.stop_gradient(logits), chosen, valid)
        margins = jax.lax.stop_gradient(scores) - ranked[:, -1:]
        threshold = upper_quantile(margins, valid, self.num_experts_per_token / scores.shape[-1])
        stats["margin_min"] = jnp.min(jnp.where(valid[:, None], margins, jnp.inf))
        stats["margin_max"] = jnp.max(jnp.where(valid[:, None], margins, -jnp.inf))
        stats["bias"] = self.bias
        stats["next_bias"] = threshold.mean() - threshold
        return weights, chosen, stats


def router_statistics(
    logits: Float[Array, "T E"], chosen: Int[Array, "T K"], valid: Bool[Array, " T"]
) -> dict[str, Array]:
    """Load per expert (1 = its fair share), entropy of the choice, and two quantities that other
    systems use as losses, here only reported: load_balance and router_z."""
    num_experts = logits.shape[-1]
    count = jnp.maximum(valid.sum(), 1)
    mask = valid[:, None].astype(jnp.float32)
    picked = jax.nn.one_hot(chosen, num_experts).sum(1) * mask
    share = picked.sum(0) / (count * chosen.shape[-1])
    probability = (jax.nn.softmax(logits, axis=-1) * mask).sum(0) / count
    entropy = -jnp.sum(share * jnp.log(jnp.maximum(share, 1e-20)))
    log_sum = jax.nn.logsumexp(logits, axis=-1)
    return {
        "load": share * num_experts,
        "entropy": entropy / math.log(num_experts),
        "load_balance": num_experts * jnp.sum(share * probability),
        "router_z": jnp.sum(log_sum * log_sum * mask[:, 0]) / count,
    }


def upper_quantile(
    margins: Float[Array, "T E"], valid: Bool[Array, " T"], fraction: float | Float[Array, ""]
) -> Float[Array, " E"]:
    """Returns, per expert, the value that `fraction` of the valid tokens' margins exceed.

    Found by bisection on counts, which needs no sort and adds up over devices.
    """
    mask = valid[:, None]
    target = fraction * valid.sum()
    low = jnp.min(jnp.where(mask, margins, jnp.inf), axis=0)
    high = jnp.max(jnp.where(mask, margins, -jnp.inf), axis=0)
    low, high = jnp.minimum(low, high), high

    def halve(_, bounds):
        low, high = bounds
        middle = 0.5 * (low + high)
        too_many = jnp.sum((margins > middle) & mask, axis=0) > target
        return jnp.where(too_many, middle, low), jnp.where(too_many, high, middle)

    _, high = jax.lax.fori_loop(0, BISECTIONS, halve, (low, high))
    return jnp.where(valid.any(), high, 0.0)
