"""Turns hidden states into the sum of shared experts and of a few routed ones.

Shapes: B batch, S sequence, D hidden, E experts, F expert dim.
"""

import equinox as eqx
import jax
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from marin_dagster.models.config import MoEConfig
from marin_dagster.models.experts import apply_experts
from marin_dagster.models.layers import SwiGLU, normal
from marin_dagster.models.router import Router


class MoE(eqx.Module):
    """Shared experts for every token, and K of E routed experts; no token is ever dropped."""

    router: Router
    shared: SwiGLU
    gate_up: Float[Array, "E D twoF"]
    down: Float[Array, "E F D"]

    def __init__(self, config: MoEConfig, key: PRNGKeyArray):
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
