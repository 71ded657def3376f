import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from marin_dagster.models.config import ModelConfig
from marin_dagster.models.experts import apply_experts, block_layout
from marin_dagster.models.router import Router, upper_quantile

CONFIG = ModelConfig(
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
route = eqx.filter_jit(lambda router, x, valid: router(x, valid))


def with_bias(router: Router, bias) -> Router:
    return eqx.tree_at(lambda tree: tree.bias, router, bias)


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


def test_every_assignment_has_its_own_place_in_a_block_of_its_expert():
    chosen = expert_arguments(concentrated=True)[2]
    layout = block_layout(chosen, 8)
    rows = layout.source.size // layout.block_expert.size
    assert len(set(np.asarray(layout.places).ravel().tolist())) == TOKENS * 3
    np.testing.assert_array_equal(layout.block_expert[layout.places // rows], chosen)
    np.testing.assert_array_equal(layout.source[layout.places].ravel(), np.arange(TOKENS * 3))
    assert int(layout.places.max()) < int(layout.num_blocks) * rows


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


def test_the_router_spends_its_scale_on_exactly_k_experts():
    router = Router(CONFIG, jax.random.key(0))
    x = jax.random.normal(jax.random.key(1), (TOKENS, 16))
    weights, chosen, stats = route(router, x, jnp.ones(TOKENS, bool))
    assert all(len(set(row)) == 3 for row in np.asarray(chosen).tolist())
    np.testing.assert_allclose(weights.sum(-1), CONFIG.routed_scaling_factor, rtol=1e-5)
    assert float(stats["load"].mean()) == pytest.approx(1.0)


def test_the_bias_changes_the_choice_but_not_the_weights_and_has_no_gradient():
    router = Router(CONFIG, jax.random.key(0))
    x = jax.random.normal(jax.random.key(1), (TOKENS, 16))
    valid = jnp.ones(TOKENS, bool)
    pushed = with_bias(router, jnp.zeros(8).at[5].set(9.0))
    weights, chosen, _ = route(pushed, x, valid)
    assert bool((chosen == 5).any(-1).all())
    scores = jax.nn.sigmoid(x @ router.weight)
    picked = jnp.take_along_axis(scores, chosen, axis=-1)
    want = picked / picked.sum(-1, keepdims=True) * CONFIG.routed_scaling_factor
    np.testing.assert_allclose(weights, want, rtol=1e-4)

    def spent(bias):
        return (with_bias(router, bias)(x, valid)[0] ** 2).sum()

    np.testing.assert_array_equal(jax.jit(jax.grad(spent))(pushed.bias), 0)


def test_the_next_bias_balances_a_skewed_router():
    router = Router(CONFIG, jax.random.key(0))
    x = jax.random.normal(jax.random.key(1), (2000, 16)) + 1.0
    skewed = eqx.tree_at(lambda tree: tree.weight, router, router.weight.at[:, 0].add(1.0))
    valid = jnp.ones(2000, bool)
    loads = []
    for _ in range(6):
        _, _, stats = route(skewed, x, valid)
        loads.append(float(stats["load"].max()))
        skewed = with_bias(skewed, stats["next_bias"])
    assert loads[0] > 2.0
    assert loads[-1] < 1.15


def test_padding_does_not_move_the_bias_or_the_statistics():
    router = Router(CONFIG, jax.random.key(0))
    x = jax.random.normal(jax.random.key(1), (TOKENS, 16))
    padded = jnp.concatenate([x, jnp.ones((30, 16))])
    valid = jnp.arange(TOKENS + 30) < TOKENS
    _, _, alone = route(router, x, jnp.ones(TOKENS, bool))
    _, _, beside = route(router, padded, valid)
    for name in alone:
        np.testing.assert_allclose(alone[name], beside[name], atol=1e-5, err_msg=name)


def test_the_quantile_is_exceeded_by_the_fraction_asked_for():
    margins = jax.random.normal(jax.random.key(0), (1000, 4))
    threshold = jax.jit(upper_quantile)(margins, jnp.ones(1000, bool), 0.25)
    np.testing.assert_array_equal((margins > threshold).sum(0), 250)
