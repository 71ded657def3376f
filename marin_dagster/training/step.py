"""Turns a model, an optimizer and a batch into the next model: the jitted training step.

Shapes: L layers, E experts.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from marin_dagster.models.transformer import Transformer, with_router_bias
from marin_dagster.training.hyperball import norm_drift
from marin_dagster.training.loss import token_loss
from marin_dagster.training.optimizer import OptimizerConfig

Arrays = Mapping[str, Any]  # NumPy or JAX arrays of a batch, by the names of its fields


class State(NamedTuple):
    """What a step reads and replaces."""

    model: Transformer
    optimizer: Any
    step: Int[Array, ""]  # steps done


def initial_state(model: Transformer, config: OptimizerConfig, num_steps: int) -> State:
    """Makes the state before the first step."""
    optimizer = config.make(num_steps).init(eqx.filter(model, eqx.is_array))
    return State(model, optimizer, jnp.zeros((), jnp.int32))


def make_step(
    config: OptimizerConfig, num_steps: int, z_loss_weight: float
) -> Callable[[State, Arrays], tuple[State, dict[str, Array]]]:
    """Compiles `step(state, batch) -> (state, metrics)`; it reuses the memory of its state."""
    transformation = config.make(num_steps)

    def loss_of(model: Transformer, batch: Arrays):
        hidden, stats = model(batch["tokens"], batch["segment_ids"])
        loss = token_loss(
            hidden, model.head, batch["targets"], batch["loss_weights"], z_loss_weight
        )
        return loss.loss, (loss, stats)

    @eqx.filter_jit(donate="all-except-first")
    def step(batch: Arrays, state: State):
        grad_of = eqx.filter_value_and_grad(loss_of, has_aux=True)
        (_, (loss, stats)), grads = grad_of(state.model, batch)
        params = eqx.filter(state.model, eqx.is_array)
        updates, optimizer = transformation.update(grads, state.optimizer, params)
        model = with_router_bias(eqx.apply_updates(state.model, updates), stats["next_bias"])
        metrics = {
            "train/loss": loss.loss,
            "train/cross_entropy": loss.cross_entropy,
            "train/z_loss": loss.z_loss,
            "train/grad_norm": optax.global_norm(grads),
            "train/param_norm": optax.global_norm(params),
            **config.rates_at(state.step, num_steps),
            **router_metrics(stats),
        }
        drift = norm_drift(optimizer)
        if drift is not None:
            metrics["optim/norm_drift"] = drift
        return State(model, optimizer, state.step + 1), metrics

    return lambda state, batch: step(batch, state)


def router_metrics(stats: dict[str, Array]) -> dict[str, Array]:
    """Sums the routers up: the worst layer of each quantity, and the load of every layer."""
    load: Float[Array, "L E"] = stats["load"]
    return {
        "moe/max_load_ratio": load.max(),  # over the fair share; 1 is balanced
        "moe/min_load_ratio": load.min(),
        "moe/routing_entropy": stats["entropy"].min(),  # of the load, 1 is uniform
        "moe/bias_range": jnp.ptp(stats["bias"], axis=-1).max(),
        "moe/margin_min": stats["margin_min"].min(),
        "moe/margin_max": stats["margin_max"].max(),
        "moe/load_balance": stats["load_balance"].max(),
        "moe/router_z": stats["router_z"].max(),
        "moe/dropped": jnp.zeros(()),  # the expert path drops nothing
    }


@eqx.filter_jit
def evaluation_sums(model: Transformer, batch: Arrays) -> tuple[Array, Array, Array]:
    """Returns the weighted nats of a batch, its weight, and the load of every expert."""
    hidden, stats = model(batch["tokens"], batch["segment_ids"])
    loss = token_loss(hidden, model.head, batch["targets"], batch["loss_weights"])
    weight = batch["loss_weights"].sum()
    return loss.cross_entropy * weight, weight, stats["load"]
