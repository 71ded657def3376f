"""Turns hidden states into each token's experts, and their margins into the next step's bias.

Shapes: B batch, S sequence, D hidden, E experts, K experts per token, G bins of the margins' grid.
"""

import math
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from marin_dagster.models.config import RoutedConfig
from marin_dagster.models.layers import normal

Part, Model = TypeVar("Part"), TypeVar("Model")

BINS = 2048  # of the margins' grid, which is two wide: a bin is a thousandth of a sigmoid


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

    def __init__(self, config: RoutedConfig, key: PRNGKeyArray):
        shape = (config.hidden_dim, config.num_experts)
        self.weight = normal(key, shape, config.hidden_dim)
        self.bias = jnp.zeros(config.num_experts)
        self.num_experts_per_token = config.num_experts_per_token
        self.scaling_factor = config.routed_scaling_factor

    def __call__(
        self, x: Float[Array, "B S D"], valid: Bool[Array, "B S"]
    ) -> tuple[Float[Array, "B S K"], Int[Array, "B S K"], dict[str, Array]]:
        """Returns combine weights, chosen experts, and sums over the valid tokens."""
        weight = self.weight.astype(jnp.float32)
        logits = jnp.matmul(x.astype(jnp.float32), weight, precision=jax.lax.Precision.HIGHEST)
        scores = jax.nn.sigmoid(logits)
        biased = jax.lax.stop_gradient(scores + self.bias)
        ranked, order = jax.lax.top_k(biased, self.num_experts_per_token + 1)
        chosen = order[..., :-1]
        weights = jnp.take_along_axis(scores, chosen, axis=-1)
        weights = weights / (weights.sum(-1, keepdims=True) + 1e-20) * self.scaling_factor
        margins = jax.lax.stop_gradient(scores) - ranked[..., -1:]
        stats = router_sums(logits, scores, chosen, valid)
        stats["histogram"] = margin_histogram(margins + grid_shift(self.bias, chosen), valid)
        return weights, chosen, stats


def router_sums(
    logits: Float[Array, "B S E"],
    scores: Float[Array, "B S E"],
    chosen: Int[Array, "B S K"],
    valid: Bool[Array, "B S"],
) -> dict[str, Array]:
    """Sums up what statistics and losses need; sums add up over devices and micro-batches.

    `assignments` are counted per expert and before any is dropped. `sequence_balance` is the loss
    of a row, E/K · Σ share · mean normalised score, times its tokens.
    """
    num_experts = logits.shape[-1]
    mask = valid.astype(jnp.float32)
    picked = jax.nn.one_hot(chosen, num_experts).sum(-2) * mask[..., None]
    probability = jax.nn.softmax(logits, axis=-1) * mask[..., None]
    normalised = scores / (scores.sum(-1, keepdims=True) + 1e-20) * mask[..., None]
    tokens = mask.sum(-1, keepdims=True)
    in_rows = picked.sum(-2) * normalised.sum(-2) / jnp.maximum(tokens, 1.0)
    return {
        "valid": mask.sum(),
        "assignments": picked.sum((0, 1)),
        "probability": probability.sum((0, 1)),
        "sequence_balance": in_rows.sum() * num_experts / chosen.shape[-1],
        "router_z": jnp.sum(jax.nn.logsumexp(logits, axis=-1) ** 2 * mask),
    }


def grid_shift(bias: Float[Array, " E"], chosen: Int[Array, "*tokens K"]) -> Float[Array, ""]:
    """Returns what moves every margin into the grid from -1 to 1: the (K+1)-th largest bias.

    Scores lie between 0 and 1, so a token's threshold, its (K+1)-th biased score, lies between
    this bias and this bias plus one. So the grid is known before the batch is.
    """
    return jax.lax.top_k(bias, chosen.shape[-1] + 1)[0][-1]


def margin_histogram(
    shifted: Float[Array, "B S E"], valid: Bool[Array, "B S"]
) -> Int[Array, "E G"]:
    """Counts the valid tokens' margins per expert in a fixed grid from -1 to 1."""
    num_experts = shifted.shape[-1]
    bins = jnp.clip((shifted + 1.0) * (BINS / 2), 0, BINS - 1).astype(jnp.int32)
    place = jnp.where(valid[..., None], bins + jnp.arange(num_experts) * BINS, num_experts * BINS)
    counts = jnp.zeros(num_experts * BINS, jnp.int32).at[place.reshape(-1)].add(1, mode="drop")
    return counts.reshape(num_experts, BINS)


def quantile_bias(
    histogram: Int[Array, "*layers E G"], bias: Float[Array, "*layers E"], num_chosen: int
) -> Float[Array, "*layers E"]:
    """Returns the bias that would have balanced the counted tokens: minus the upper K/E quantile.

    Found by linear interpolation within the bin that holds it; the mean over experts is zero.
    Without tokens the bias stays.
    """
    counts = histogram.astype(jnp.float32)
    above = jnp.cumsum(counts[..., ::-1], axis=-1)[..., ::-1]  # of this bin and those above it
    total = above[..., :1]
    target = total * (num_chosen / histogram.shape[-2])
    place = jnp.maximum(jnp.sum(above >= target, axis=-1, keepdims=True) - 1, 0)
    inside = jnp.take_along_axis(counts, place, axis=-1)
    surplus = jnp.take_along_axis(above, place, axis=-1) - target
    threshold = (place + surplus / jnp.maximum(inside, 1.0))[..., 0] * (2.0 / BINS)
    balanced = threshold.mean(-1, keepdims=True) - threshold
    return jnp.where(total[..., 0] > 0, balanced, bias)


def margin_range(
    histogram: Int[Array, "*layers E G"], bias: Float[Array, "*layers E"], num_chosen: int
) -> tuple[Float[Array, "*layers"], Float[Array, "*layers"]]:
    """Returns the least and the greatest margin counted, to a bin."""
    shift = jax.lax.top_k(bias, num_chosen + 1)[0][..., -1]
    filled = histogram.sum(-2) > 0
    lowest = jnp.argmax(filled, axis=-1)
    highest = BINS - jnp.argmax(filled[..., ::-1], axis=-1)
    return lowest * (2.0 / BINS) - 1.0 - shift, highest * (2.0 / BINS) - 1.0 - shift


def load_balance(
    assignments: Float[Array, "*layers E"],
    probability: Float[Array, "*layers E"],
    valid: Float[Array, "..."],
) -> Float[Array, "*layers"]:
    """E · Σ share of the assignments · mean probability; 1 when both are even."""
    share = assignments / jnp.maximum(assignments.sum(-1, keepdims=True), 1.0)
    mean = probability / jnp.maximum(valid, 1.0)[..., None]
    return assignments.shape[-1] * jnp.sum(share * mean, axis=-1)


def routing_entropy(assignments: Float[Array, "*layers E"]) -> Float[Array, "*layers"]:
    """Entropy of the assignments' shares over that of even ones."""
    share = assignments / jnp.maximum(assignments.sum(-1, keepdims=True), 1.0)
    entropy = -jnp.sum(share * jnp.log(jnp.maximum(share, 1e-20)), axis=-1)
    return entropy / math.log(assignments.shape[-1])


def parts(model: Any, kind: type[Part]) -> list[Part]:
    """Lists the modules of a kind within a model, in order."""
    leaves = jax.tree.leaves(model, is_leaf=lambda node: isinstance(node, kind))
    return [leaf for leaf in leaves if isinstance(leaf, kind)]


def router_bias(model: Any) -> Float[Array, "L E"]:
    """Stacks the routers' biases over the layers that have one."""
    return jnp.stack([router.bias for router in parts(model, Router)])


def with_router_bias(model: Model, bias: Float[Array, "L E"]) -> Model:
    """Returns the model with other router biases."""
    return eqx.tree_at(
        lambda tree: [router.bias for router in parts(tree, Router)], model, list(bias)
    )
