"""Hyperball steps keep norms; what else changes a norm is seen."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from marin_dagster.models.transformer import Transformer
from marin_dagster.training.hyperball import (
    DRIFT_LIMIT,
    hyperball,
    matrix_norm,
    norm_drift,
    norm_drifts,
)
from marin_dagster.training.optimizer import AdamH, AdamW, MuonH
from marin_dagster.training.schedule import Linear
from marin_dagster.training.step import initial_state, make_step
from tests.unit.models.test_layers import TINY

FLAT = Linear(warmup_steps=0, final_ratio=1.0)
CONFIG = MuonH(learning_rate=0.03, adam_learning_rate=0.01, schedule=FLAT)


def weights() -> dict[str, jax.Array]:
    rng = np.random.default_rng(0)
    shapes = {
        "head": (8, 12),
        "layers.0.attention.query": (8, 8),
        "layers.0.moe.down": (3, 4, 8),
        "embedding": (12, 8),
    }
    return {name: jnp.asarray(rng.normal(size=s), jnp.float32) for name, s in shapes.items()}


def test_a_step_is_marins_formula():
    rng = np.random.default_rng(0)
    p, u = rng.normal(size=(5, 7)), rng.normal(size=(5, 7))
    moved = p - 0.1 * u * np.linalg.norm(p) / np.linalg.norm(u)
    expected = moved * np.linalg.norm(p) / np.linalg.norm(moved)
    params = {"w": jnp.asarray(p, jnp.float32)}
    step = hyperball(lambda count: 0.1)
    update, _ = step.update({"w": jnp.asarray(u, jnp.float32)}, step.init(params), params)
    np.testing.assert_allclose(params["w"] + update["w"], expected, rtol=1e-5)


@pytest.mark.parametrize("kind", [MuonH, AdamH])
def test_norms_are_constant_over_many_steps(kind):
    config = kind(learning_rate=0.03, adam_learning_rate=0.01, schedule=FLAT)
    start, transformation = weights(), config.make(1)

    @jax.jit
    def run(params, state):
        def step(carry, key):
            params, state = carry
            grads = jax.tree.map(lambda x: jax.random.normal(key, x.shape), params)
            updates, state = transformation.update(grads, state, params)
            return (optax.apply_updates(params, updates), state), norm_drift(state)

        return jax.lax.scan(step, (params, state), jax.random.split(jax.random.key(1), 2_000))

    (end, state), drifts = run(start, transformation.init(start))
    for name in ("head", "layers.0.attention.query", "layers.0.moe.down"):
        np.testing.assert_allclose(matrix_norm(end[name]), matrix_norm(start[name]), rtol=1e-6)
        assert float(jnp.abs(end[name] - start[name]).max()) > 0.05
    assert float(matrix_norm(end["embedding"])) != pytest.approx(
        float(matrix_norm(start["embedding"])), rel=1e-3
    )
    assert float(drifts.max()) < 1e-6
    assert set(norm_drifts(state)) == set(start) - {"embedding"}


def test_a_weight_that_something_else_changed_is_seen_and_its_matrix_named():
    params, transformation = weights(), CONFIG.make(1)
    state = transformation.init(params)
    params["layers.0.moe.down"] = params["layers.0.moe.down"].at[1].multiply(1.01)
    _, state = jax.jit(transformation.update)(weights(), state, params)
    assert float(norm_drift(state)) == pytest.approx(0.01, rel=1e-3)
    assert float(norm_drift(state)) > DRIFT_LIMIT
    drifts = norm_drifts(state)["layers.0.moe.down"]
    assert drifts[1] > DRIFT_LIMIT > max(drifts[0], drifts[2])


def test_an_expert_without_a_gradient_stays_where_it_is():
    params, transformation = weights(), CONFIG.make(1)
    grads = weights()
    grads["layers.0.moe.down"] = grads["layers.0.moe.down"].at[2].set(0)
    updates, _ = jax.jit(transformation.update)(grads, transformation.init(params), params)
    np.testing.assert_allclose(updates["layers.0.moe.down"][2], 0, atol=1e-6)
    assert np.isfinite(updates["layers.0.moe.down"]).all()


def test_a_matrix_that_starts_at_zero_is_refused_by_name():
    params = weights()
    params["layers.0.attention.query"] = jnp.zeros((8, 8))
    with pytest.raises(
        ValueError, match=r"layers.0.attention.query starts with a matrix of norm 0"
    ):
        CONFIG.make(1).init(params)


def test_a_run_without_hyperballs_has_no_drift():
    transformation = AdamW(learning_rate=1e-3, schedule=FLAT).make(1)
    assert norm_drift(transformation.init(weights())) is None


def test_the_state_of_a_large_model_can_be_planned_without_memory():
    shape = {"layers.0.moe.down": jax.ShapeDtypeStruct((384, 3_072, 3_072), jnp.float32)}
    state = jax.eval_shape(CONFIG.make(1).init, shape)
    sizes = [leaf.size for leaf in jax.tree.leaves(state)]
    assert sum(sizes) == pytest.approx(384 * 3_072**2, rel=1e-3)


def test_a_training_step_reports_the_drift_and_both_rates():
    model = Transformer(TINY, 12, jax.random.key(0))
    rows = np.arange(2 * TINY.seq_len).reshape(2, -1) % 12
    batch = {
        "tokens": rows,
        "targets": (rows + 1) % 12,
        "loss_weights": np.ones(rows.shape, np.float32),
        "segment_ids": np.zeros_like(rows),
    }
    state = initial_state(model, CONFIG, 4)
    _, metrics = make_step(CONFIG, 4, 0.0)(state, batch)
    assert float(metrics["optim/norm_drift"]) < 1e-6
    assert float(metrics["train/learning_rate"]) == pytest.approx(0.03)
    assert float(metrics["optim/adam_learning_rate"]) == pytest.approx(0.01)
