import jax
import jax.numpy as jnp
import numpy as np
import pytest

from marin_dagster.models.config import MoEConfig
from marin_dagster.models.experts import apply_experts, block_layout, block_rows

CONFIG = MoEConfig(
    hidden_dim=16,
    num_layers=1,
    num_heads=2,
    num_kv_heads=1,
    head_dim=8,
    expert_dim=12,
    num_experts=8,
    num_experts_per_token=3,
    num_shared_experts=1,
    seq_len=16,
)
TOKENS = 50


def dense_experts(x, weights, chosen, gate_up, down):
    """Runs every expert on every token and masks: slow and obviously right."""
    gate, up = jnp.split(jnp.einsum("td,edf->tef", x, gate_up), 2, axis=-1)
    every = jnp.einsum("tef,efd->ted", jax.nn.silu(gate) * up, down)
    share = (jax.nn.one_hot(chosen, gate_up.shape[0]) * weights[..., None]).sum(1)
    return jnp.einsum("ted,te->td", every, share)


def expert_arguments(concentrated: bool):
    keys = jax.random.split(jax.random.key(0), 4)
    x = jax.random.normal(keys[0], (TOKENS, 16))
    scores = jax.random.normal(keys[1], (TOKENS, 8))
    if concentrated:  # the first three experts take all: five experts are empty
        scores = scores + jnp.where(jnp.arange(8) < 3, 100.0, 0.0)
    weights, chosen = jax.lax.top_k(scores, 3)
    gate_up = jax.random.normal(keys[2], (8, 16, 24))
    down = jax.random.normal(keys[3], (8, 12, 16))
    return x, weights / 100, chosen, gate_up, down


@pytest.mark.parametrize("concentrated", [False, True])
def test_blocks_equal_the_dense_reference_in_value_and_gradient(concentrated):
    x, weights, chosen, gate_up, down = expert_arguments(concentrated)

    def total(function):
        def value(x, weights, gate_up, down):
            out = function(x, weights, chosen, gate_up, down)
            return (out * jnp.sin(jnp.arange(out.size).reshape(out.shape))).sum(), out

        grad = jax.jit(jax.value_and_grad(value, argnums=(0, 1, 2, 3), has_aux=True))
        return grad(x, weights, gate_up, down)

    (_, fast), fast_grads = total(apply_experts)
    (_, slow), slow_grads = total(dense_experts)
    np.testing.assert_allclose(fast, slow, rtol=1e-4, atol=1e-4)
    for got, want in zip(fast_grads, slow_grads, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("concentrated", [False, True])
def test_every_assignment_has_its_own_place_in_a_block_of_its_expert(concentrated):
    chosen = expert_arguments(concentrated)[2]
    layout = block_layout(chosen, 8)
    places = np.asarray(layout.places)
    assert len(set(places.ravel().tolist())) == TOKENS * 3
    np.testing.assert_array_equal(layout.source[places].ravel(), np.arange(TOKENS * 3))
    expert_of = np.full(layout.source.size, -1)
    for blocks, rows in zip(layout[2:], block_rows(chosen.size, 8), strict=True):
        for index in range(int(blocks.count)):
            start = int(blocks.start[index])
            assert (expert_of[start : start + rows] == -1).all(), "blocks do not overlap"
            expert_of[start : start + rows] = blocks.expert[index]
    np.testing.assert_array_equal(expert_of[places], chosen)


def test_an_assignment_without_expert_adds_nothing_and_gets_no_gradient():
    x, weights, chosen, gate_up, down = expert_arguments(concentrated=False)
    gone = jnp.zeros(chosen.shape, bool).at[::3, 1].set(True)

    def total(weights, chosen):
        return jnp.sum(jnp.sin(apply_experts(x, weights, chosen, gate_up, down)))

    grad = jax.jit(jax.value_and_grad(total))
    value, got = grad(weights, jnp.where(gone, 8, chosen))
    zeroed, _ = grad(jnp.where(gone, 0, weights), chosen)
    assert float(value) == pytest.approx(float(zeroed), rel=1e-5)
    np.testing.assert_array_equal(np.asarray(got)[np.asarray(gone)], 0)
    assert np.all(np.asarray(got)[~np.asarray(gone)] != 0)
