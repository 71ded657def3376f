"""A run of 100 steps that stopped at 60 goes on to 200 as declared, or not at all."""

import dataclasses
import json

import numpy as np
import pytest

from marin_dagster.recipe import StageError
from marin_dagster.training.extension import check_extension, describe, join
from marin_dagster.training.optimizer import AdamW, MuonH
from marin_dagster.training.schedule import Cosine, Extension, Linear, WarmupStableDecay

COSINE = Cosine(warmup_steps=10, final_ratio=0.1)
OPTIMIZER = AdamW(learning_rate=0.02, schedule=COSINE)
STORED = json.loads(json.dumps(describe(OPTIMIZER, 100)))
POLICIES = {
    "keep": {},
    "rewarm": {"rewarm_steps": 20},
    "decay": {"final_ratio": 0.05},
}


def extended(policy: str, optimizer=OPTIMIZER, **changes):
    fields = {"planned_steps": 100, "at": 60, "policy": policy, **POLICIES[policy], **changes}
    schedule = Extension(schedule=optimizer.schedule, **fields)
    return dataclasses.replace(optimizer, schedule=schedule)


def rates(optimizer, num_steps: int = 200) -> np.ndarray:
    return np.array(optimizer.learning_rate_at(np.arange(num_steps), num_steps))


def test_more_steps_without_a_policy_are_refused_with_both_learning_rates():
    with pytest.raises(StageError) as caught:
        check_extension(STORED, OPTIMIZER, 200, 60)
    assert caught.value.reason == "bad_input"
    before, after = join(STORED, OPTIMIZER, 200, 60)
    assert after > 1.5 * before
    for part in ("num_steps 100 → 200", f"{before:.4g}", f"{after:.4g}", "at=60", "'rewarm'"):
        assert part in caught.value.message


def test_another_schedule_or_optimizer_is_refused_too():
    other = dataclasses.replace(OPTIMIZER, schedule=Linear(warmup_steps=10))
    with pytest.raises(StageError, match=r"schedule\.type Cosine → Linear"):
        check_extension(STORED, other, 100, 60)
    with pytest.raises(StageError, match=r"learning_rate 0\.02 → 0\.03"):
        check_extension(STORED, dataclasses.replace(OPTIMIZER, learning_rate=0.03), 100, 60)
    muon = MuonH(learning_rate=0.02, adam_learning_rate=0.01, schedule=COSINE)
    with pytest.raises(StageError, match=r"optimizer\.type AdamW → MuonH"):
        check_extension(STORED, muon, 100, 60)


def test_an_unchanged_run_goes_on():
    assert "goes on as planned" in check_extension(STORED, OPTIMIZER, 100, 60)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_named_policy_goes_on_without_a_jump_and_tells_both_rates(policy):
    optimizer = extended(policy)
    said = check_extension(STORED, optimizer, 200, 60)
    both = join(STORED, optimizer, 200, 60)
    assert f"policy {policy!r}" in said
    assert f"{both.before:.4g} up to step 60" in said
    assert f"{both.after:.4g} after it" in said
    assert abs(both.after - both.before) < 0.03 * OPTIMIZER.learning_rate
    planned = rates(OPTIMIZER, 100)
    np.testing.assert_array_equal(rates(optimizer)[:60], planned[:60])
    assert np.abs(np.diff(rates(optimizer))).max() < 0.11 * OPTIMIZER.learning_rate


def test_keep_stays_on_the_planned_curve_and_at_its_end():
    got = rates(extended("keep"))
    np.testing.assert_allclose(got[60:100], rates(OPTIMIZER, 100)[60:], rtol=1e-6)
    np.testing.assert_allclose(got[100:], 0.1 * OPTIMIZER.learning_rate, rtol=1e-5)


def test_rewarm_reaches_the_curve_of_the_longer_run():
    got = rates(extended("rewarm"))
    np.testing.assert_allclose(got[80:], rates(OPTIMIZER, 200)[80:], rtol=1e-5)
    assert got[70] > got[60]


def test_decay_falls_straight_to_its_end():
    got = rates(extended("decay"))
    steps = np.diff(got[60:])
    np.testing.assert_allclose(steps, steps[0], rtol=1e-2)
    assert got[-1] == pytest.approx(0.05 * OPTIMIZER.learning_rate, rel=0.1)


def test_a_resume_after_the_join_finds_its_own_schedule():
    optimizer = extended("rewarm")
    again = json.loads(json.dumps(describe(optimizer, 200)))
    assert "goes on as planned" in check_extension(again, optimizer, 200, 80)
    twice = extended("decay", optimizer, planned_steps=200, at=150)
    assert "extended to 300" in check_extension(again, twice, 300, 150)


def test_an_extension_of_another_run_or_from_a_later_step_is_refused():
    with pytest.raises(StageError, match="another schedule"):
        check_extension(STORED, extended("keep", planned_steps=120), 200, 60)
    with pytest.raises(StageError, match="another schedule"):
        check_extension(STORED, extended("keep", at=70), 200, 60)
    assert check_extension(STORED, extended("keep", at=50), 200, 60)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"policy": "guess"}, "policy='guess' is not one of keep, rewarm, decay"),
        ({"policy": "rewarm"}, "rewarm_steps=0 with policy='rewarm'"),
        ({"policy": "keep", "rewarm_steps": 3}, "rewarm_steps=3 with policy='keep'"),
        ({"policy": "decay", "at": 101}, "at=101 is outside 1 to planned_steps=100"),
        ({"policy": "decay", "at": 100}, "goes on at a learning rate of 0"),
        ({"policy": "keep"}, "goes on at a learning rate of 0"),
    ],
)
def test_an_extension_that_cannot_be_meant_is_refused(fields, message):
    schedule = WarmupStableDecay(warmup_steps=5, decay_steps=10)
    with pytest.raises(ValueError, match=message):
        Extension(**{"schedule": schedule, "planned_steps": 100, "at": 60, **fields})
