import dataclasses

import jax
import numpy as np
import pytest

from marin_dagster.recipe import Devices, StageError
from marin_dagster.training.mesh import on_mesh
from marin_dagster.training.preflight import (
    Estimate,
    check_memory,
    device_limit,
    estimate,
    refuse_what_cannot_fit,
)
from marin_dagster.training.step import initial_state, make_step
from tests.unit.models.test_layers import TINY
from tests.unit.training.test_step import OPTIMIZER

ROWS, SEQ, VOCAB = 8, 128, 2048
CONFIG = dataclasses.replace(
    TINY, hidden_dim=64, head_dim=16, expert_dim=64, num_experts=8, seq_len=SEQ
)


@pytest.fixture(scope="module")
def state():
    return initial_state(CONFIG.make(VOCAB, jax.random.key(0)), OPTIMIZER, 10)


def batch() -> dict[str, np.ndarray]:
    ids, weights = np.zeros((ROWS, SEQ), np.int32), np.ones((ROWS, SEQ), np.float32)
    return {"tokens": ids, "targets": ids, "loss_weights": weights, "segment_ids": ids}


@pytest.mark.parametrize("remat", ["none", "block"])
def test_the_estimate_is_near_what_xla_reserves(state, remat):
    devices, messages = Devices(remat=remat), []
    with on_mesh(None, devices):
        step = make_step(OPTIMIZER, 10, 1e-4)
        check_memory(step, state, batch(), devices, None, messages.append, "toy")
        found = estimate(state, ROWS, SEQ, devices, {})
        peak = step.peak_bytes(state, batch())
    assert peak is not None
    assert 0.7 < found.total / peak < 1.3
    assert "activations" in messages[0]
    assert f"{peak / 2**30:.3f} GiB" in messages[1]


def test_rematerialisation_micro_batches_and_devices_save_what_they_should(state):
    plain = estimate(state, ROWS, SEQ, Devices(), {}).parts

    def parts(mesh=None, **placement):
        return estimate(state, ROWS, SEQ, Devices(**placement), mesh or {}).parts

    assert parts(remat="block")["activations"] < 0.7 * plain["activations"]
    assert parts(micro_batches=4)["activations"] < 0.4 * plain["activations"]
    sharded = parts({"data": 2, "context": 2})
    assert sharded["activations"] == pytest.approx(plain["activations"] / 4, rel=0.01)
    assert sharded["optimizer state"] < 0.55 * plain["optimizer state"]


def test_what_cannot_fit_is_refused_with_its_largest_part_and_a_way_out():
    found = Estimate({"parameters": 2**30, "activations": 6 * 2**30})
    refuse_what_cannot_fit(found, None, "toy")
    refuse_what_cannot_fit(found, 8 * 2**30, "toy")
    with pytest.raises(StageError) as caught:
        refuse_what_cannot_fit(found, 5 * 2**30, "checkpoints/toy/dev")
    message = str(caught.value)
    assert "needs about 7 GiB on each device and there are 5 GiB" in message
    assert "most of it is activations (6 GiB)" in message
    assert "MARIN_REMAT=block" in message
    assert "MARIN_MESH" in message
    assert caught.value.reason == "bad_input"


def test_this_machine_has_a_limit_that_all_its_devices_share():
    limit = device_limit()
    assert limit is not None
    assert 2**20 < limit < 2**50
