"""Turns a model, an optimizer and a batch into the next model: the jitted training step.

Everything that a step measures is a sum over tokens, divided once, by what the whole batch holds.
So neither micro-batches nor the mesh change a number. Shapes: L layers with experts, E experts.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from marin_dagster.models.language_model import LanguageModel
from marin_dagster.models.moe import MoE
from marin_dagster.models.router import (
    Model,
    Router,
    load_balance,
    parts,
    quantile_bias,
    router_bias,
    with_router_bias,
)
from marin_dagster.models.transformer import PADDING
from marin_dagster.training.balance import Balance
from marin_dagster.training.guard import Guard, empty_guard, judge
from marin_dagster.training.hyperball import norm_drift
from marin_dagster.training.loss import token_loss
from marin_dagster.training.mesh import constrain_state
from marin_dagster.training.norms import group_norms
from marin_dagster.training.optimizer import OptimizerConfig
from marin_dagster.training.recovery import Recovery
from marin_dagster.training.router_metrics import router_metrics

Arrays = Mapping[str, Any]  # NumPy or JAX arrays of a batch, by the names of its fields
Sums = dict[str, Array]


class State(NamedTuple):
    """What a step reads and replaces."""

    model: LanguageModel
    optimizer: Any
    step: Int[Array, ""]  # steps done
    guard: Guard | None = None  # None: no update is skipped


class Whole(NamedTuple):
    """What the whole batch holds, known before its parts are read."""

    weight: Float[Array, ""]
    valid: Float[Array, ""]  # tokens
    assignments: Float[Array, "L E"] | None  # None: a part is the whole, and counts its own


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
    balance: Balance = Balance(),  # noqa: B008 (a frozen value)
    *,
    recovery: Recovery | None = None,
    micro_batches: int = 1,
) -> "Step":
    """Makes the compiled `step(state, batch) -> (state, metrics)`; it reuses its state's memory.

    The batch is read in `micro_batches` parts, which saves memory and changes no number. A step
    that `recovery` skips returns the model and the optimizer that it was given.
    """
    transformation = config.make(num_steps)
    losses = _Losses(z_loss_weight, balance)

    @eqx.filter_jit(donate="all-except-first")
    def step(batch: Arrays, state: State):
        key = jax.random.fold_in(jax.random.key(0), state.step)
        sums, grads = losses.gradients(state.model, batch, key, micro_batches)
        params = eqx.filter(state.model, eqx.is_array)
        updates, optimizer = transformation.update(grads, state.optimizer, params)
        model = eqx.apply_updates(state.model, updates)
        if balance.quantile:
            model = balanced(model, sums)
        grad_norms = group_norms(grads, "train/grad_norm")
        new, skipped = State(model, optimizer, state.step + 1), jnp.zeros((), bool)
        if recovery is not None:
            new, skipped = unless_skipped(
                state, new, sums["loss"], grad_norms["train/grad_norm"], recovery
            )
        metrics = {
            "train/loss": sums["loss"],
            "train/cross_entropy": sums["cross_entropy"],
            "train/z_loss": sums["z_loss"],
            **grad_norms,
            **group_norms(params, "train/param_norm"),
            **group_norms(updates, "train/update_norm"),
            "train/skipped": skipped,
            **config.rates_at(state.step, num_steps),
            **router_metrics(state.model, sums),
        }
        drift = norm_drift(optimizer)
        if drift is not None:
            metrics["optim/norm_drift"] = drift
        return constrain_state(new), metrics

    return Step(step)


class Step(NamedTuple):
    """A training step, compiled for the shapes of its first call."""

    compiled: Any  # batch and state, in that order: all but the first are donated

    def __call__(self, state: State, batch: Arrays) -> tuple[State, dict[str, Array]]:
        return self.compiled(batch, state)

    def peak_bytes(self, state: State, batch: Arrays) -> int | None:
        """Bytes that XLA reserves on one device for this step, if the backend says so."""
        found = self.compiled.lower(batch, state).compile().compiled.memory_analysis()
        if found is None:
            return None
        held = found.argument_size_in_bytes + found.output_size_in_bytes
        return int(held - found.alias_size_in_bytes + found.temp_size_in_bytes)


class _Losses(NamedTuple):
    """What is minimised, and how its gradient is taken."""

    z_loss_weight: float
    balance: Balance

    def gradients(
        self, model: LanguageModel, batch: Arrays, key: PRNGKeyArray, micro_batches: int
    ) -> tuple[Sums, Any]:
        """Adds up the sums and the gradients of the parts of a batch."""
        valid = jnp.sum(batch["segment_ids"] > PADDING).astype(jnp.float32)
        whole = Whole(jnp.sum(batch["loss_weights"]), valid, None)
        grad_of = eqx.filter_grad(self.value, has_aux=True)
        if micro_batches == 1:
            grads, sums = grad_of(model, batch, whole, key)
            return sums, constrain_state(grads)
        _refuse_capacity(model, micro_batches)
        split = _split(batch, micro_batches)
        if self.balance.load_balance_loss_weight:

            def count(part):
                return self.value(model, part, whole, key)[1]["assignments"]

            whole = whole._replace(assignments=_add_up(count, split))

        def part_of(part):
            grads, sums = grad_of(model, part, whole, key)
            return constrain_state(grads), sums

        grads, sums = _add_up(part_of, split)
        return sums, grads

    def value(
        self, model: LanguageModel, batch: Arrays, whole: Whole, key: PRNGKeyArray
    ) -> tuple[Array, Sums]:
        """Returns this part's share of what is minimised, and its sums."""
        hidden, sums = model(batch["tokens"], batch["segment_ids"], key)
        loss = token_loss(
            hidden,
            model.head,
            batch["targets"],
            batch["loss_weights"],
            self.z_loss_weight,
            whole.weight,
        )
        total = loss.loss + self._balancing(sums, whole)
        own = {"loss": total, "cross_entropy": loss.cross_entropy, "z_loss": loss.z_loss}
        return total, jax.lax.stop_gradient({**sums, **own})

    def _balancing(self, sums: Sums, whole: Whole) -> Array | float:
        """Adds up the weighted losses that balance experts, over layers."""
        if not sums:
            return 0.0
        weights, total = self.balance, 0.0
        tokens = jnp.maximum(whole.valid, 1.0)
        if weights.load_balance_loss_weight:
            counts = whole.assignments
            counts = jax.lax.stop_gradient(sums["assignments"]) if counts is None else counts
            layers = load_balance(counts, sums["probability"], tokens)
            total += weights.load_balance_loss_weight * layers.sum()
        if weights.sequence_balance_loss_weight:
            layers = sums["sequence_balance"] / tokens
            total += weights.sequence_balance_loss_weight * layers.sum()
        if weights.router_z_loss_weight:
            total += weights.router_z_loss_weight * (sums["router_z"] / tokens).sum()
        return total


def balanced(model: Model, sums: Sums) -> Model:
    """Returns the model with the router biases that would have balanced the counted tokens."""
    routers = parts(model, Router)
    if not routers:
        return model
    bias = router_bias(model)
    num_chosen = routers[0].num_experts_per_token
    return with_router_bias(model, quantile_bias(sums["histogram"], bias, num_chosen))


def _refuse_capacity(model: LanguageModel, micro_batches: int) -> None:
    for layer in parts(model, MoE):
        if layer.capacity_factor is not None:
            raise ValueError(
                f"micro_batches={micro_batches} with capacity_factor={layer.capacity_factor}: a "
                "capacity is over the whole batch, and a part of it would drop other tokens; use "
                "micro_batches=1, or capacity_factor=None"
            )


def _split(batch: Arrays, micro_batches: int) -> dict[str, Array]:
    """Deals rows to parts in turn, so that every device keeps its rows."""
    rows = batch["tokens"].shape[0]
    if rows % micro_batches:
        raise ValueError(
            f"batch_size={rows} is not divisible by micro_batches={micro_batches}; use a divisor"
        )
    return {
        name: jnp.asarray(rows_of).reshape(rows // micro_batches, micro_batches, -1).swapaxes(0, 1)
        for name, rows_of in batch.items()
    }


def _add_up(function: Callable[[Any], Any], split: Any) -> Any:
    """Sums a function over the parts of a batch, one after the other."""
    like = jax.eval_shape(function, jax.tree.map(lambda part: part[0], split))
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), like)

    def add(total, part):
        return jax.tree.map(jnp.add, total, function(part)), None

    return jax.lax.scan(add, zeros, split)[0]


def unless_skipped(
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


@eqx.filter_jit
def evaluation_sums(model: LanguageModel, batch: Arrays) -> tuple[Array, Array]:
    """Returns the weighted nats of a batch and its weight. No token is dropped."""
    hidden, _ = model(batch["tokens"], batch["segment_ids"])
    weight = jnp.sum(batch["loss_weights"])
    loss = token_loss(hidden, model.head, batch["targets"], batch["loss_weights"])
    return loss.cross_entropy * weight, weight
