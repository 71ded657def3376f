import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from marin_dagster.models.grouped import grouped_experts, ragged_experts
from marin_dagster.recipe import Devices
from tests.unit.models.test_moe import CONFIG, expert_arguments


@pytest.mark.parametrize("concentrated", [False, True])
def test_both_backends_compute_the_same_experts_and_gradients(concentrated):
    """Some assignments are to no expert, as those of other devices and those dropped are."""
    x, weights, chosen, gate_up, down = expert_arguments(concentrated)
    chosen = jnp.where(jax.random.bernoulli(jax.random.key(8), 0.3, chosen.shape), 8, chosen)
    assert bool((chosen == 8).any())

    def total(function):
        def value(x, weights, gate_up, down):
            out = function(x, weights, chosen, gate_up, down)
            return (out * jnp.sin(jnp.arange(out.size).reshape(out.shape))).sum(), out

        return jax.jit(jax.grad(value, argnums=(0, 1, 2, 3), has_aux=True))(
            x, weights, gate_up, down
        )

    grads, out = total(grouped_experts)
    other_grads, other = total(ragged_experts)
    np.testing.assert_allclose(out, other, rtol=1e-4, atol=1e-4)
    for got, want in zip(grads, other_grads, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-3)
    assert float(jnp.abs(grads[1][chosen == 8]).max()) == 0.0


def test_a_placement_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match="exchange='mail' is not one of"):
        Devices(exchange="mail")
    with pytest.raises(ValueError, match="micro_batches=0 is below 1"):
        Devices(micro_batches=0)


def test_a_capacity_that_is_none_is_refused():
    with pytest.raises(ValueError, match="capacity_factor=0 is not positive"):
        dataclasses.replace(CONFIG, capacity_factor=0)
