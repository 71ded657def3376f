"""Turns hidden states into the weighted sum of a few experts, and the load into the next bias.

Shapes: B batch, S sequence, T tokens (B·S), D hidden, E experts, K experts per token, F expert
dim, A assignments (T·K), P places (assignments padded to whole blocks), M blocks.
"""

import functools
import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from marin_dagster.models.config import ModelConfig
from marin_dagster.models.layers import SwiGLU, normal

MAX_BLOCK = 256  # assignments that share one gathered expert; larger blocks gain nothing on CPU
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

    def __init__(self, config: ModelConfig, key: PRNGKeyArray):
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


class MoE(eqx.Module):
    """Shared experts for every token, and K of E routed experts; no token is ever dropped."""

    router: Router
    shared: SwiGLU
    gate_up: Float[Array, "E D twoF"]
    down: Float[Array, "E F D"]

    def __init__(self, config: ModelConfig, key: PRNGKeyArray):
        keys = jax.random.split(key, 4)
        hidden, width, experts = config.hidden_dim, config.expert_dim, config.num_experts
        self.router = Router(config, keys[0])
        self.shared = SwiGLU(hidden, width * config.num_shared_experts, keys[1])
        self.gate_up = normal(keys[2], (experts, hidden, 2 * width), hidden)
        self.down = normal(keys[3], (experts, width, hidden), width)

    def __call__(
        self, x: Float[Array, "B S D"], valid: Bool[Array, "B S"]
    ) -> tuple[Float[Array, "B S D"], dict[str, Array]]:
        tokens = x.reshape(-1, x.shape[-1])
        weights, chosen, stats = self.router(tokens, valid.reshape(-1))
        routed = apply_experts(tokens, weights, chosen, self.gate_up, self.down)
        return self.shared(x) + routed.reshape(x.shape), stats


def apply_experts(
    x: Float[Array, "T D"],
    weights: Float[Array, "T K"],
    chosen: Int[Array, "T K"],
    gate_up: Float[Array, "E D twoF"],
    down: Float[Array, "E F D"],
) -> Float[Array, "T D"]:
    """Sums each token's chosen experts, exactly: sorted assignments in blocks of one expert.

    Every expert's assignments are padded to whole blocks; each block gathers its expert's
    weights, so that all experts are one batched matmul of a fixed shape.
    """
    num_experts = gate_up.shape[0]
    places, block_expert, source = block_layout(chosen, num_experts)
    blocks = dispatch(x, source, places).reshape(*block_expert.shape, -1, x.shape[-1])
    hidden = jnp.einsum("mpd,mdf->mpf", blocks, gather_blocks(gate_up, block_expert))
    gate, up = jnp.split(hidden, 2, axis=-1)
    out = jnp.einsum("mpf,mfd->mpd", jax.nn.silu(gate) * up, gather_blocks(down, block_expert))
    return combine(out.reshape(-1, x.shape[-1]), weights, source, places)


def block_layout(
    chosen: Int[Array, "T K"], num_experts: int
) -> tuple[Int[Array, "T K"], Int[Array, " M"], Int[Array, " P"]]:
    """Lays assignments out by expert in whole blocks.

    Returns the place of every assignment, the expert of every block, and the assignment of every
    place (A, one past the last, where a place is padding).
    """
    flat = chosen.reshape(-1)
    block = min(MAX_BLOCK, max(8, flat.size // num_experts // 4))
    num_blocks = -(-flat.size // block) + num_experts
    one_hot = jax.nn.one_hot(flat, num_experts, dtype=jnp.int32)
    rank = jnp.take_along_axis(jnp.cumsum(one_hot, axis=0), flat[:, None], axis=1)[:, 0] - 1
    blocks_of = -(-one_hot.sum(0) // block)
    ends = jnp.cumsum(blocks_of)
    places = (ends - blocks_of)[flat] * block + rank
    block_expert = jnp.searchsorted(ends, jnp.arange(num_blocks), side="right")
    block_expert = jnp.minimum(block_expert, num_experts - 1).astype(jnp.int32)
    source = jnp.full(num_blocks * block, flat.size, jnp.int32)
    source = source.at[places].set(jnp.arange(flat.size, dtype=jnp.int32), unique_indices=True)
    return places.reshape(chosen.shape), block_expert, source


@jax.custom_vjp
def dispatch(
    x: Float[Array, "T D"], source: Int[Array, " P"], places: Int[Array, "T K"]
) -> Float[Array, "P D"]:
    """Copies each token to its K places; padding places are zero. Both directions gather."""
    token = source // places.shape[1]
    return x.at[token].get(mode="fill", fill_value=0)


def _dispatch_forward(x, source, places):
    return dispatch(x, source, places), places


def _dispatch_backward(places, grad):
    return sum(grad[places[:, k]] for k in range(places.shape[1])), None, None


dispatch.defvjp(_dispatch_forward, _dispatch_backward)


@jax.custom_vjp
def combine(
    out: Float[Array, "P D"],
    weights: Float[Array, "T K"],
    source: Int[Array, " P"],
    places: Int[Array, "T K"],
) -> Float[Array, "T D"]:
    """Sums the outputs of each token's K places by its weights. Both directions gather."""
    parts = [out[places[:, k]] * weights[:, k, None] for k in range(places.shape[1])]
    return functools.reduce(jnp.add, parts)


def _combine_forward(out, weights, source, places):
    return combine(out, weights, source, places), (out, weights, source, places)


def _combine_backward(residuals, grad):
    out, weights, source, places = residuals
    num_chosen = places.shape[1]
    scale = weights.reshape(-1).at[source].get(mode="fill", fill_value=0)
    grad_token = grad.at[source // num_chosen].get(mode="fill", fill_value=0)
    grad_weights = [jnp.sum(grad * out[places[:, k]], axis=-1) for k in range(num_chosen)]
    return grad_token * scale[:, None], jnp.stack(grad_weights, axis=1), None, None


combine.defvjp(_combine_forward, _combine_backward)


def gather_blocks(
    weight: Float[Array, "E I O"], block_expert: Int[Array, " M"]
) -> Float[Array, "M I O"]:
    """Copies each block's expert; blocks are in the order of experts."""
    return weight.at[block_expert].get(indices_are_sorted=True, mode="promise_in_bounds")
