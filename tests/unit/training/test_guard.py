import functools

import jax
import numpy as np
import pytest

from marin_dagster.training.guard import empty_guard, judge
from marin_dagster.training.recovery import KeepEvery, Recovery, check_ranges, is_permanent

POLICY = Recovery(window=16, min_samples=8, sigma=6.0)


@functools.partial(jax.jit, static_argnames="policy")
def judged(losses, norms, policy):
    def step(guard, pair):
        skip, guard = judge(guard, pair[0], pair[1], policy)
        return guard, skip

    return jax.lax.scan(step, empty_guard(policy), (losses, norms))


def verdicts(losses, norms=None, policy: Recovery = POLICY):
    norms = np.ones(len(losses)) if norms is None else norms
    guard, found = judged(np.float32(losses), np.float32(norms), policy)
    return found.tolist(), guard


def test_a_verdict_is_that_of_mean_and_deviation_over_the_accepted_steps():
    rng = np.random.default_rng(0)
    losses = rng.normal(3, 0.1, 200) + (rng.random(200) < 0.1) * rng.uniform(0, 2, 200)
    norms = rng.lognormal(0, 0.2, 200) * np.where(rng.random(200) < 0.05, 5, 1)
    accepted: list[tuple[float, float]] = []
    expected = []
    for pair in zip(losses, norms, strict=True):
        window = np.array(accepted[-POLICY.window :])
        leap = len(accepted) >= POLICY.min_samples and np.any(
            np.array(pair) > window.mean(0) + POLICY.sigma * window.std(0)
        )
        expected.append(bool(leap))
        if not leap:
            accepted.append(pair)
    assert verdicts(losses, norms)[0] == expected
    assert 3 < sum(expected) < 60


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_skipped_from_the_first_step_and_never_enters_the_window(value):
    found, guard = verdicts([value, 1.0, 1.0], [1.0, value, 1.0])
    assert found == [True, True, False]
    assert np.isfinite(guard.losses).all()
    assert int(guard.accepted) == 1


def test_many_spikes_do_not_raise_the_limit_for_the_next_one():
    calm = np.random.default_rng(1).normal(3, 0.1, 20)
    found, guard = verdicts([*calm, *[9.0] * 50, 3.0])
    assert found == [False] * 20 + [True] * 50 + [False]
    assert float(guard.losses.max()) < 4


def test_a_leap_is_none_before_there_are_enough_samples():
    assert verdicts([3.0, 2.9, 3.1, 90.0])[0] == [False] * 4


def test_noise_on_a_flat_curve_is_no_leap():
    assert not any(verdicts([2.0, *[2.0] * 15, 2.005, 2.0])[0])


def test_policies_that_make_no_sense_are_refused():
    for wrong in (
        {"min_samples": 129},
        {"min_samples": 1},
        {"sigma": 0.0},
        {"max_skips": 0},
        {"max_rollbacks": -1},
    ):
        with pytest.raises(ValueError, match=r"=.*;"):
            Recovery(**wrong)


def test_permanent_points_follow_the_first_range_that_reaches_their_step():
    ranges = (KeepEvery(every=10, until=30), KeepEvery(every=50, until=200), KeepEvery(every=500))
    kept = [step for step in range(1, 1201) if is_permanent(step, ranges)]
    assert kept == [10, 20, 30, 50, 100, 150, 200, 500, 1000]
    assert not is_permanent(10, ())


def test_a_range_that_no_step_gets_to_is_refused():
    with pytest.raises(ValueError, match="no step gets to it"):
        check_ranges((KeepEvery(every=10), KeepEvery(every=50, until=200)))
    with pytest.raises(ValueError, match="no step gets to it"):
        check_ranges((KeepEvery(every=10, until=60), KeepEvery(every=50, until=60)))
    check_ranges((KeepEvery(every=10, until=60), KeepEvery(every=50)))
