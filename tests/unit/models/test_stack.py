import dataclasses

import equinox as eqx
import jax
import numpy as np
import pytest

from marin_dagster.models.stack import Execution, execution, repetition
from tests.unit.models.test_layers import TINY

# Local, global, local, global.
DEEP = dataclasses.replace(TINY, num_layers=4, sliding_window=6, global_every=2)


@eqx.filter_jit
def loss_and_gradient(model, ids):
    def loss(model):
        hidden, stats = model(ids)
        return (model.logits(hidden) ** 2).mean(), stats

    return eqx.filter_value_and_grad(loss, has_aux=True)(model)


@pytest.fixture(scope="module")
def unrolled():
    model = DEEP.make(40, jax.random.key(0))
    ids = jax.random.randint(jax.random.key(1), (2, 24), 0, 40)
    return model, ids, loss_and_gradient(model, ids)


def test_scanned_and_rematerialised_layers_compute_the_same(unrolled):
    model, ids, want = unrolled
    with execution(Execution(scan=True, remat=True)):
        got = loss_and_gradient(model, ids)
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


def test_a_scan_compiles_one_period(unrolled):
    model, ids, _ = unrolled

    def num_products() -> int:
        text = jax.jit(lambda model, ids: model(ids)[0]).lower(model, ids).as_text()
        return text.count("stablehlo.dot_general")

    every = num_products()
    with execution(Execution(scan=True)):
        assert num_products() == every / 2


def test_the_period_is_found_also_when_the_last_layers_differ():
    config = dataclasses.replace(TINY, num_layers=26, sliding_window=6)
    made = jax.eval_shape(lambda: config.make(40, jax.random.key(0)))
    assert repetition(made.layers) == (4, 6)
    assert repetition(made.layers[:3]) == (1, 3)
    assert repetition(made.layers[2:4])[1] == 1  # nothing repeats
