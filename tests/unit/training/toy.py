"""A training that compiles in a moment: a table of logits, and rows that count up."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

from marin_dagster.training import step
from marin_dagster.training.guard import empty_guard
from marin_dagster.training.step import State

VOCAB = 12


class Costs:
    """What the loop asks of a configuration."""

    def flops_per_token(self, vocab_size: int, seq_len: int) -> float:
        return 6.0 * vocab_size


class Table(eqx.Module):
    """Predicts the next token from the last one alone."""

    table: jax.Array
    config: Costs = eqx.field(static=True, default=Costs())
    vocab_size: int = eqx.field(static=True, default=VOCAB)


def new_model() -> Table:
    return Table(jax.random.normal(jax.random.key(0), (VOCAB, VOCAB)))


def initial_state(model, config, num_steps, recovery=None):
    optimizer = config.make(num_steps).init(eqx.filter(model, eqx.is_array))
    guard = None if recovery is None else empty_guard(recovery)
    return State(model, optimizer, jnp.zeros((), jnp.int32), guard)


@functools.cache
def make_step(config, num_steps, z_loss_weight, balance, *, recovery, micro_batches):
    """The step of the engine for a `Table`."""
    transformation = config.make(num_steps)

    def loss_of(model, batch):
        logits = model.table[batch["tokens"]]
        nats = optax.softmax_cross_entropy_with_integer_labels(logits, batch["targets"])
        return (nats * batch["loss_weights"]).mean()

    @eqx.filter_jit(donate="all-except-first")
    def jitted(batch, state):
        loss, grads = eqx.filter_value_and_grad(loss_of)(state.model, batch)
        updates, optimizer = transformation.update(grads, state.optimizer, state.model)
        new = State(eqx.apply_updates(state.model, updates), optimizer, state.step + 1)
        grad_norm, skipped = optax.global_norm(grads), jnp.zeros((), bool)
        if recovery is not None:
            new, skipped = step.unless_skipped(state, new, loss, grad_norm, recovery)
        metrics = {
            "train/loss": loss,
            "train/cross_entropy": loss,
            "train/grad_norm": grad_norm,
            "train/param_norm": optax.global_norm(state.model),
            "train/skipped": skipped,
            "train/learning_rate": config.learning_rate_at(state.step, num_steps),
            "moe/dropped": 0.0,
            "moe/max_load_ratio": 1.0,
        }
        return new, {name: jnp.asarray(value) for name, value in metrics.items()}

    return lambda state, batch: jitted(batch, state)
