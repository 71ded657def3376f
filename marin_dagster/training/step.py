"""Turns a model, an optimizer and a batch into the next model: the jitted training step.

Shapes: L layers, E experts.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int

from marin_dagster.models.language_model import LanguageModel
from marin_dagster.models.transformer import with_router_bias
from marin_dagster.training.guard import Guard, empty_guard, judge
from marin_dagster.training.loss import token_loss
from marin_dagster.training.optimizer import OptimizerConfig
from marin_dagster.training.recovery import Recovery

Arrays = Mapping[str, Any]  # NumPy or JAX arrays of a batch, by the names of its fields


class State(NamedTuple):
    """What a step reads and replaces."""

    model: LanguageModel
    optimizer: Any
    step: Int[Array, ""]  # steps done
    guard: Guard | None = None  # None: no update is skipped


def initial_state(
    model: LanguageModel,
    config: OptimizerConfig,
    num_steps: int,
    recovery: Recovery | None = None,
) -> State:
    """Makes the state before the first step."""
    optimizer = config.make(num_steps).init(eqx.filter(model, eqx.is_array))
    guard = None if recovery is None else empty_guard(recovery)
    return State(model, optimizer, jnp.zeros((), jnp.int32), guard)


def make_step(
    config: OptimizerConfig,
    num_steps: int,
    z_loss_weight: float,
    recovery: Recovery | None = None,
) -> Callable[[State, Arrays], tuple[State, dict[str, Array]]]:
    """Compiles `step(state, batch) -> (state, metrics)`; it reuses the memory of its state.

    A step that `recovery` skips returns the model and the optimizer that it was given.
    """
    transformation = config.make(num_steps)

    def loss_of(model: LanguageModel, batch: Arrays):
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
        grad_norm = optax.global_norm(grads)
        new, skipped = State(model, optimizer, state.step + 1), jnp.zeros((), bool)
        if recovery is not None:
            new, skipped = _unless_skipped(state, new, loss.loss, grad_norm, recovery)
        metrics = {
            "train/loss": loss.loss,
            "train/cross_entropy": loss.cross_entropy,
            "train/z_loss": loss.z_loss,
            "train/grad_norm": grad_norm,
            "train/param_norm": optax.global_norm(params),
            "train/learning_rate": config.learning_rate_at(state.step, num_steps),
            "train/skipped": skipped,
            **router_metrics(stats),
        }
        return new, metrics

    return lambda state, batch: step(batch, state)


def _unless_skipped(
    old: State,
    new: State,
    loss: Float[Array, ""],
    grad_norm: Float[Array, ""],
    recovery: Recovery,
) -> tuple[State, Bool[Array, ""]]:
    """The new state, or what the guard says: the old model and moments, and the step counted.

    Whole numbers of an optimizer count its steps; they go on, so that the learning rate stays that
    of the step.
    """
    assert old.guard is not None
    skip, guard = judge(old.guard, loss, grad_norm, recovery)

    def keep(before, after):
        return jnp.where(skip, before, after) if eqx.is_inexact_array(after) else after

    model, optimizer = jax.tree.map(keep, old[:2], new[:2])
    return State(model, optimizer, new.step, guard), skip


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
def evaluation_sums(model: LanguageModel, batch: Arrays) -> tuple[Array, Array, Array]:
    """Returns the weighted nats of a batch, its weight, and the load of every expert."""
    hidden, stats = model(batch["tokens"], batch["segment_ids"])
    loss = token_loss(hidden, model.head, batch["targets"], batch["loss_weights"])
    weight = batch["loss_weights"].sum()
    return loss.cross_entropy * weight, weight, stats["load"]
