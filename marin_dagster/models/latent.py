"""Turns hidden states into what routed experts read, and what they write back.

Shapes: D hidden, Z latent.
"""

import equinox as eqx
import jax
from jaxtyping import Array, Float, PRNGKeyArray

from marin_dagster.models.config import RoutedConfig
from marin_dagster.models.layers import RMSNorm, normal


class Latent(eqx.Module):
    """Experts at another width: hidden to latent with a norm, experts, latent to hidden.

    A narrow latent halves the bytes between devices; without the norm Marin lost quality.
    """

    enter: Float[Array, "D Z"]
    norm: RMSNorm
    leave: Float[Array, "Z D"]

    def __init__(self, config: RoutedConfig, width: int, key: PRNGKeyArray):
        key_enter, key_leave = jax.random.split(key)
        self.enter = normal(key_enter, (config.hidden_dim, width), config.hidden_dim)
        self.norm = RMSNorm(width, config.norm_eps)
        self.leave = normal(key_leave, (width, config.hidden_dim), width)

    def read(self, x: Float[Array, "*batch D"]) -> Float[Array, "*batch Z"]:
        return self.norm(x @ self.enter)

    def write(self, out: Float[Array, "*batch Z"]) -> Float[Array, "*batch D"]:
        return out @ self.leave


class FullWidth(eqx.Module):
    """Experts at the width of the hidden states."""

    def read(self, x: Float[Array, "*batch D"]) -> Float[Array, "*batch D"]:
        return x

    def write(self, out: Float[Array, "*batch D"]) -> Float[Array, "*batch D"]:
        return out
