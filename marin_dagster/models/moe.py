"""Turns hidden states into the sum of shared experts and of a few routed ones.

Shapes: B batch, S sequence, D hidden, Z width of the experts, E experts, F expert dim.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from marin_dagster.models.capacity import fair_keep
from marin_dagster.models.config import RoutedConfig
from marin_dagster.models.dispatch import Senders, routed_experts
from marin_dagster.models.latent import FullWidth, Latent
from marin_dagster.models.layers import SwiGLU, normal
from marin_dagster.models.router import Router


class MoE(eqx.Module):
    """Shared experts for every token, and K of E routed experts.

    Drops tokens only where there is a capacity and a key: in training. A dropped assignment adds
    nothing, and the weights of the others stay.
    """

    router: Router
    shared: SwiGLU
    latent: Latent | FullWidth
    gate_up: Float[Array, "E Z twoF"]
    down: Float[Array, "E F Z"]
    capacity_factor: float | None = eqx.field(static=True)
    sender_capacity_factor: float | None = eqx.field(static=True)

    def __init__(self, config: RoutedConfig, key: PRNGKeyArray):
        keys = jax.random.split(key, 4)
        hidden, width, experts = config.hidden_dim, config.expert_dim, config.num_experts
        self.router = Router(config, keys[0])
        self.shared = SwiGLU(hidden, width * config.num_shared_experts, keys[1])
        inner = config.expert_latent_dim or hidden
        self.latent = FullWidth()
        if config.expert_latent_dim is not None:
            self.latent = Latent(config, inner, jax.random.fold_in(key, 4))
        self.gate_up = normal(keys[2], (experts, inner, 2 * width), inner)
        self.down = normal(keys[3], (experts, width, inner), width)
        self.capacity_factor = config.capacity_factor
        self.sender_capacity_factor = config.sender_capacity_factor

    def __call__(
        self,
        x: Float[Array, "B S D"],
        valid: Bool[Array, "B S"],
        key: PRNGKeyArray | None = None,
    ) -> tuple[Float[Array, "B S D"], dict[str, Array]]:
        """Returns the experts' sum and the router's sums; `key` draws who is dropped."""
        weights, chosen, stats = self.router(x, valid)
        stats["dropped"] = jnp.zeros(())
        senders = None
        if key is not None and self.capacity_factor is not None:
            num_experts = self.gate_up.shape[0]
            keep = fair_keep(chosen, valid, num_experts, self.capacity_factor, key)
            stats["dropped"] = jnp.sum(valid[..., None] & ~keep).astype(jnp.float32)
            weights, chosen = jnp.where(keep, weights, 0.0), jnp.where(keep, chosen, num_experts)
        if key is not None and self.sender_capacity_factor is not None:
            senders = Senders(self.sender_capacity_factor, jax.random.fold_in(key, 1))
        routed, stats["sender_dropped"] = routed_experts(
            self.latent.read(x), weights, chosen, valid, self.gate_up, self.down, senders
        )
        return self.shared(x) + self.latent.write(routed), stats
