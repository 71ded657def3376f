import pytest

from marin_dagster.models.peaks import flops_utilization, peak_flops


def test_a_mesh_has_the_peak_of_all_its_devices():
    assert peak_flops(["NVIDIA H200"] * 4) == 4 * 989e12
    # 4 devices, 2 GFLOP per token: half of what they can do is 989,000 tokens per second.
    assert flops_utilization(2e9, 989_000.0, ["NVIDIA H200"] * 4) == pytest.approx(0.5)


@pytest.mark.parametrize("kinds", [["cpu"], [], ["NVIDIA H200", "NVIDIA Rubin"]])
def test_an_unknown_device_has_no_utilization(kinds):
    assert flops_utilization(2e9, 1000.0, kinds) is None
