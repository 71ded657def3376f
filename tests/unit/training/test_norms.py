import jax
import jax.numpy as jnp
import numpy as np
import pytest

from marin_dagster.models.transformer import Transformer
from marin_dagster.training.norms import group_norms, group_of
from tests.unit.models.test_layers import TINY


@pytest.mark.parametrize(
    ("path", "group"),
    [
        ("embedding", "embedding"),
        ("head", "head"),
        ("norm.weight", "norm"),
        ("layers.11.attention.query_norm.weight", "norm"),
        ("layers.11.attention.out", "attention"),
        ("layers.0.moe.gate_up", "moe"),
        ("layers.0.moe.shared.down", "moe.shared"),
        ("layers.0.moe.router.weight", "moe.router"),
    ],
)
def test_a_parameter_belongs_to_its_module_whatever_its_layer(path, group):
    assert group_of(path) == group


def test_the_groups_make_up_the_whole():
    model = Transformer(TINY, 32, jax.random.key(0))
    norms = {name: float(value) for name, value in group_norms(model, "train/norm").items()}
    whole = norms.pop("train/norm")
    assert whole == pytest.approx(np.sqrt(sum(value**2 for value in norms.values())))
    router = [layer.moe.router for layer in model.layers]
    weights = jnp.concatenate([part.weight.reshape(-1) for part in router])
    assert norms["train/norm/moe.router"] == pytest.approx(float(jnp.linalg.norm(weights)))


def test_squares_of_half_precision_do_not_overflow():
    assert float(group_norms({"x": jnp.full(4, 1e4, jnp.float16)}, "n")["n"]) == pytest.approx(2e4)
