import pytest

from marin_dagster.training.throughput import Meter


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def measured(peak: float | None) -> dict[str, float]:
    clock = Clock()
    meter = Meter(peak, clock)
    for what, seconds in (("input", 0.5), ("step", 2.0), ("eval", 1.0), ("checkpoint", 0.25)):
        with meter.spent(what):
            clock.now += seconds
    clock.now += 0.25
    return meter.metrics(tokens=4000, flops=4e9)


def test_the_time_of_an_iteration_is_accounted_for():
    numbers = measured(None)
    parts = ("step", "input", "eval", "checkpoint", "host")
    assert sum(numbers[f"throughput/{part}_seconds"] for part in parts) == pytest.approx(4.0)
    assert numbers["throughput/iteration_seconds"] == pytest.approx(4.0)
    assert numbers["throughput/host_seconds"] == pytest.approx(0.25)


def test_stalls_lower_the_overall_speed_and_not_that_of_the_step():
    numbers = measured(None)
    assert numbers["throughput/tokens_per_second"] == pytest.approx(2000)
    assert numbers["throughput/tokens_per_second_overall"] == pytest.approx(1000)


def test_mfu_is_the_share_of_the_peak_and_absent_where_none_is_known():
    assert measured(4e9)["throughput/mfu"] == pytest.approx(0.5)
    assert "throughput/mfu" not in measured(None)


def test_a_step_does_not_pay_for_the_one_before():
    clock = Clock()
    meter = Meter(None, clock)
    with meter.spent("step"):
        clock.now += 1
    meter.metrics(10, 1.0)
    with meter.spent("step"):
        clock.now += 2
    assert meter.metrics(10, 1.0)["throughput/iteration_seconds"] == pytest.approx(2)
