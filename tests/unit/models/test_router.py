import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from marin_dagster.models.router import (
    BINS,
    Router,
    load_balance,
    margin_histogram,
    margin_range,
    quantile_bias,
)
from tests.unit.models.test_moe import CONFIG

ROWS, SEQ = 5, 10
K = CONFIG.num_experts_per_token
route = eqx.filter_jit(lambda router, x, valid: router(x, valid))
EVERY = jnp.ones((ROWS, SEQ), bool)


@pytest.fixture(scope="module")
def router() -> Router:
    return Router(CONFIG, jax.random.key(0))


def with_bias(router: Router, bias) -> Router:
    return eqx.tree_at(lambda tree: tree.bias, router, bias)


def hidden(rows: int = ROWS, seq: int = SEQ) -> jax.Array:
    return jax.random.normal(jax.random.key(1), (rows, seq, 16))


def test_the_router_spends_its_scale_on_exactly_k_experts(router):
    weights, chosen, stats = route(router, hidden(), EVERY)
    assert all(len(set(row)) == K for row in np.asarray(chosen).reshape(-1, K).tolist())
    np.testing.assert_allclose(weights.sum(-1), CONFIG.routed_scaling_factor, rtol=1e-5)
    assert float(stats["assignments"].sum()) == ROWS * SEQ * K


def test_the_bias_changes_the_choice_but_not_the_weights_and_has_no_gradient(router):
    pushed = with_bias(router, jnp.zeros(8).at[5].set(9.0))
    weights, chosen, _ = route(pushed, hidden(), EVERY)
    assert bool((chosen == 5).any(-1).all())
    picked = jnp.take_along_axis(jax.nn.sigmoid(hidden() @ router.weight), chosen, axis=-1)
    want = picked / picked.sum(-1, keepdims=True) * CONFIG.routed_scaling_factor
    np.testing.assert_allclose(weights, want, rtol=1e-4)

    def spent(bias):
        return (with_bias(router, bias)(hidden(), EVERY)[0] ** 2).sum()

    np.testing.assert_array_equal(jax.jit(jax.grad(spent))(pushed.bias), 0)


def test_the_next_bias_balances_a_skewed_router(router):
    x = hidden(40, 50) + 1.0
    skewed = eqx.tree_at(lambda tree: tree.weight, router, router.weight.at[:, 0].add(1.0))
    loads = []
    for _ in range(6):
        stats = route(skewed, x, jnp.ones((40, 50), bool))[2]
        loads.append(float(stats["assignments"].max() / stats["assignments"].mean()))
        skewed = with_bias(skewed, quantile_bias(stats["histogram"], skewed.bias, K))
    assert loads[0] > 2.0
    assert loads[-1] < 1.15


def test_the_next_bias_is_minus_the_upper_quantile_to_a_bin(router):
    bias = 0.3 * jax.random.normal(jax.random.key(2), (8,))
    stats = route(with_bias(router, bias), hidden(40, 50), jnp.ones((40, 50), bool))[2]
    scores = jax.nn.sigmoid(hidden(40, 50) @ router.weight).reshape(-1, 8)
    threshold = jnp.sort(scores + bias, axis=-1)[:, -K - 1]
    quantile = jnp.quantile(scores - threshold[:, None], 1 - K / 8, axis=0)
    got = quantile_bias(stats["histogram"], bias, K)
    np.testing.assert_allclose(got, quantile.mean() - quantile, atol=3 * 2 / BINS)


def test_whatever_the_bias_no_margin_falls_off_the_grid(router):
    """Margins beyond it would be counted in the first and last bin, far from the others."""
    sharp = eqx.tree_at(lambda tree: tree.weight, router, 40 * router.weight)
    for scale in (0.0, 1.0, 30.0):
        bias = scale * jax.random.normal(jax.random.key(3), (8,))
        pushed = with_bias(sharp, bias)
        stats = route(pushed, hidden(), EVERY)[2]
        scores = jax.nn.sigmoid(hidden() @ sharp.weight)
        threshold = jnp.sort(scores + bias, axis=-1)[..., -K - 1 : -K]
        low, high = margin_range(stats["histogram"], bias, K)
        margins = scores - threshold
        assert float(low) == pytest.approx(float(margins.min()), abs=2 * 2 / BINS)
        assert float(high) == pytest.approx(float(margins.max()), abs=2 * 2 / BINS)


def test_padding_and_the_split_into_parts_move_no_sum(router):
    x = hidden(6)
    valid = jnp.arange(60).reshape(6, SEQ) % 7 > 1
    noise = jnp.where(valid[..., None], x, 3.0)
    whole = route(router, x, valid)[2]
    parts = [route(router, noise[i : i + 2], valid[i : i + 2])[2] for i in (0, 2, 4)]
    added = jax.tree.map(lambda *sums: sum(sums), *parts)
    for name in whole:
        np.testing.assert_allclose(added[name], whole[name], rtol=1e-5, err_msg=name)
    np.testing.assert_array_equal(added["histogram"], whole["histogram"])
    assert int(whole["histogram"].sum()) == int(valid.sum()) * 8


def test_without_tokens_the_bias_stays():
    bias = jnp.asarray([0.5, -0.25, -0.25])
    counts = margin_histogram(jnp.zeros((2, 3, 3)), jnp.zeros((2, 3), bool))
    np.testing.assert_array_equal(quantile_bias(counts, bias, 1), bias)


def test_the_load_balance_loss_is_one_when_even_and_more_when_not():
    even = load_balance(jnp.full(8, 30.0), jnp.full(8, 10.0), jnp.asarray(80.0))
    assert float(even) == pytest.approx(1.0)
    share = jnp.asarray([7.0, 1.0, 0, 0, 0, 0, 0, 0])
    assert float(load_balance(share * 30, share * 10, jnp.asarray(80.0))) > 4
