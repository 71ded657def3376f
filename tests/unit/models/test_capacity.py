import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from marin_dagster.models.capacity import budget, fair_keep, row_order

ROWS, SEQ, K, EXPERTS = 6, 20, 2, 4
keep = jax.jit(fair_keep, static_argnums=(2, 3))


def choices(seed: int, skew: float = 0.0, rows: int = ROWS, seq: int = SEQ) -> jax.Array:
    scores = jax.random.normal(jax.random.key(seed), (rows, seq, EXPERTS))
    scores = scores + skew * jnp.arange(EXPERTS)
    return jax.lax.top_k(scores, K)[1]


def padding(seed: int) -> jax.Array:
    return jax.random.bernoulli(jax.random.key(seed), 0.8, (ROWS, SEQ))


def one_by_one(chosen, valid, factor: float, key) -> np.ndarray:
    """The rule, as one would say it: position by position, row by row in the drawn order."""
    chosen, valid = np.asarray(chosen), np.asarray(valid)
    key_order, key_budget = jax.random.split(key)
    order = np.asarray(row_order(key_order, *valid.shape))
    limit = np.asarray(budget(key_budget, jnp.asarray(valid), K / EXPERTS * factor, EXPERTS))
    used, kept = np.zeros(EXPERTS, int), np.zeros(chosen.shape, bool)
    for place in range(valid.shape[1]):
        for row in order[:, place]:
            for pick in range(K):
                expert = chosen[row, place, pick]
                if valid[row, place] and used[expert] < limit[place, expert]:
                    used[expert] += 1
                    kept[row, place, pick] = True
    return kept


@pytest.mark.parametrize(("seed", "skew", "factor"), [(0, 0.0, 1.0), (1, 1.0, 1.25), (2, 3.0, 0.4)])
def test_the_drops_are_those_of_the_rule_one_by_one(seed, skew, factor):
    chosen, valid, key = choices(seed, skew), padding(seed), jax.random.key(seed)
    got = keep(chosen, valid, EXPERTS, factor, key)
    np.testing.assert_array_equal(got, one_by_one(chosen, valid, factor, key))


@pytest.mark.parametrize("factor", [0.5, 1.0, 1.5])
def test_no_expert_has_more_than_its_capacity(factor):
    chosen, valid = choices(3, skew=2.0), padding(3)
    kept = keep(chosen, valid, EXPERTS, factor, jax.random.key(0))
    taken = np.bincount(np.asarray(chosen)[np.asarray(kept)], minlength=EXPERTS)
    capacity = int(np.ceil(factor * int(valid.sum()) * K / EXPERTS))
    assert taken.max() <= capacity
    assert taken.max() >= capacity - 1  # the skewed experts are full
    assert not np.asarray(kept)[~np.asarray(valid)].any()


def test_later_tokens_change_no_earlier_fate():
    first, key = choices(4, skew=2.0), jax.random.key(9)
    second = first.at[:, 12:].set(choices(5, skew=-2.0)[:, 12:])
    valid = padding(4)
    other = valid.at[:, 12:].set(False)
    before = keep(first, valid, EXPERTS, 0.8, key)
    np.testing.assert_array_equal(before[:, :12], keep(second, valid, EXPERTS, 0.8, key)[:, :12])
    np.testing.assert_array_equal(before[:, :12], keep(first, other, EXPERTS, 0.8, key)[:, :12])
    assert bool((before[:, 12:] != keep(second, valid, EXPERTS, 0.8, key)[:, 12:]).any())


@functools.cache
def drop_counts() -> tuple[np.ndarray, np.ndarray]:
    """Drops and chances by row, position, and expert, over many draws of an overloaded batch."""
    draws = 400
    keys = jax.random.split(jax.random.key(7), draws)

    def one(key):
        scores = jax.random.normal(jax.random.fold_in(key, 1), (ROWS, SEQ, EXPERTS))
        chosen = jax.lax.top_k(scores, K)[1]
        kept = fair_keep(chosen, jnp.ones((ROWS, SEQ), bool), EXPERTS, 0.4, key)
        there = jax.nn.one_hot(chosen, EXPERTS)
        return (there * ~kept[..., None]).sum(2), there.sum(2)

    lost, chances = jax.jit(jax.vmap(one))(keys)
    return np.asarray(lost.sum(0)), np.asarray(chances.sum(0))


@pytest.mark.parametrize("over", [(1, 2), (0, 1)], ids=["row", "expert"])
def test_drops_fall_on_no_row_and_no_expert_more_than_on_others(over):
    lost, chances = (counts.sum(over) for counts in drop_counts())
    expected = chances * lost.sum() / chances.sum()
    assert lost.sum() > 5000
    chi_square = float(((lost - expected) ** 2 / expected).sum())
    assert chi_square < 25  # 5 degrees of freedom at most: one in ten thousand


def test_drops_fall_on_early_positions_as_on_late_ones_under_steady_overload():
    lost, chances = (counts.sum((0, 2)) for counts in drop_counts())
    share = lost / chances
    assert abs(share[4:12].mean() - share[12:].mean()) < 0.01
    assert np.ptp(share[1:]) < 0.05
    assert share.min() > 0.4


def test_every_position_draws_its_own_order_of_rows():
    order = np.asarray(row_order(jax.random.key(0), ROWS, SEQ))
    assert all(sorted(order[:, place]) == list(range(ROWS)) for place in range(SEQ))
    assert len({tuple(order[:, place]) for place in range(SEQ)}) > SEQ // 2
