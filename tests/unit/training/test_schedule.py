import numpy as np
import pytest

from marin_dagster.training.schedule import Cosine, Linear, WarmupStableDecay


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
