import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from marin_dagster.models.transformer import Transformer
from marin_dagster.training.optimizer import OptimizerConfig, decay_mask
from marin_dagster.training.schedule import Cosine, Linear, WarmupStableDecay
from tests.unit.models.test_layers import TINY


@pytest.mark.parametrize(
    ("schedule", "last"),
    [
        (WarmupStableDecay(warmup_steps=10, decay_steps=20), 0.05),
        (Linear(warmup_steps=10), 1 / 90),
        (Cosine(warmup_steps=10, final_ratio=0.1), 0.1),
    ],
)
def test_a_schedule_rises_to_the_peak_and_falls_to_its_end(schedule, last):
    ratios = [float(schedule.ratio(step, 100)) for step in range(100)]
    assert ratios[0] == pytest.approx(0.1)
    assert max(ratios) == pytest.approx(1.0)
    assert ratios[-1] == pytest.approx(last, abs=2e-3)
    assert np.all(np.diff(ratios[10:]) <= 1e-7)


def test_a_stable_schedule_does_not_jump_when_the_run_is_extended():
    schedule = WarmupStableDecay(warmup_steps=5, decay_steps=10)
    assert float(schedule.ratio(40, 100)) == float(schedule.ratio(40, 200)) == 1.0


def test_weight_decay_shrinks_matrices_and_leaves_norms_embeddings_and_biases():
    model = Transformer(TINY, 30, jax.random.key(0))
    mask = decay_mask(eqx.filter(model, eqx.is_array))
    assert mask.head
    assert mask.layers[0].moe.gate_up
    assert mask.layers[0].attention.query
    assert not mask.embedding
    assert not mask.norm.weight
    assert not mask.layers[0].attention.query_norm.weight
    assert not mask.layers[0].moe.router.bias


def test_a_step_moves_by_the_learning_rate_and_clips_the_gradient():
    config = OptimizerConfig(
        learning_rate=0.1, schedule=Linear(warmup_steps=0), weight_decay=0.0, max_grad_norm=1.0
    )
    transformation = config.make(1000)
    params = {"weight": jnp.ones(4)}
    updates, _ = transformation.update(
        {"weight": 1e6 * jnp.ones(4)}, transformation.init(params), params
    )
    np.testing.assert_allclose(updates["weight"], -0.1, rtol=1e-3)


def test_an_optimizer_says_what_is_wrong_with_a_value():
    with pytest.raises(ValueError, match=r"learning_rate=0 is not positive"):
        OptimizerConfig(learning_rate=0, schedule=Linear(warmup_steps=0))
