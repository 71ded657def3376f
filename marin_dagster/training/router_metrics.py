"""Turns the routers' sums into numbers: of the worst layer, and of every layer.

Shapes: L layers with experts, E experts.
"""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from marin_dagster.models.language_model import LanguageModel
from marin_dagster.models.router import (
    Router,
    load_balance,
    margin_range,
    parts,
    router_bias,
    routing_entropy,
)

LOAD = "moe/load"  # of every expert of every layer, in fair shares: an array, not a number
WORST = {  # how the layers' numbers become one; those that are missing are sums
    "max_load_ratio": jnp.max,
    "min_load_ratio": jnp.min,
    "routing_entropy": jnp.min,
    "bias_range": jnp.max,
    "margin_min": jnp.min,
    "margin_max": jnp.max,
    "load_balance": jnp.max,
    "sequence_balance": jnp.max,
    "router_z": jnp.max,
}


def router_metrics(model: LanguageModel, sums: Mapping[str, Array]) -> dict[str, Array]:
    """Returns `moe/<quantity>` over all layers, `moe/layer_<i>/<quantity>`, and `moe/load`.

    Loads are counted before any assignment is dropped and without padding; 1 is a fair share, an
    entropy of 1 an even choice. `dropped` (by experts) and `sender_dropped` are shares of the valid
    assignments. A dense model has none of these.
    """
    routers = parts(model, Router)
    if not routers:
        return {}
    counts: Float[Array, "L E"] = sums["assignments"]
    load = counts / jnp.maximum(counts.mean(-1, keepdims=True), 1e-9)
    tokens, bias = jnp.maximum(sums["valid"], 1.0), router_bias(model)
    num_chosen = routers[0].num_experts_per_token
    lowest, highest = margin_range(sums["histogram"], bias, num_chosen)
    layers: dict[str, Float[Array, " L"]] = {
        "max_load_ratio": load.max(-1),
        "min_load_ratio": load.min(-1),
        "routing_entropy": routing_entropy(counts),
        "bias_range": jnp.ptp(bias, axis=-1),
        "margin_min": lowest,
        "margin_max": highest,
        "load_balance": load_balance(counts, sums["probability"], tokens),
        "sequence_balance": sums["sequence_balance"] / tokens,
        "router_z": sums["router_z"] / tokens,
    }
    found = {f"moe/{name}": WORST[name](values) for name, values in layers.items()}
    valid = counts.sum(-1)
    for name in ("dropped", "sender_dropped"):
        layers[name] = sums[name] / jnp.maximum(valid, 1.0)
        found[f"moe/{name}"] = sums[name].sum() / jnp.maximum(valid.sum(), 1.0)
    for layer in range(len(routers)):
        found |= {f"moe/layer_{layer}/{name}": values[layer] for name, values in layers.items()}
    return {**found, LOAD: load}


def to_numbers(metrics: Mapping[str, Array], with_load: bool) -> dict[str, Any]:
    """Fetches a step's metrics from the device; `moe/load` becomes lists, or is left out."""
    numbers: dict[str, Any] = {
        name: float(value) for name, value in metrics.items() if name != LOAD
    }
    if with_load and LOAD in metrics:
        numbers[LOAD] = np.round(np.asarray(metrics[LOAD]), 4).tolist()
    return numbers
