import json
import math
import os
import socket
import subprocess
import sys

import numpy as np
import pytest
from jax.sharding import PartitionSpec

from marin_dagster.models.sharding import AXES, parameter_spec
from marin_dagster.recipe import StageError
from marin_dagster.training.mesh import mesh_shape

TOLERANCE = 1e-5
ALONE = ("replica=4", "data=8", "tensor=2", "context=4")
TOGETHER = ("expert=4", "expert=4@ring", "expert=4@ragged", "expert=2,context=2,tensor=2")


def start(meshes: tuple[str, ...], devices: int, *arguments: int) -> subprocess.Popen:
    flags = "--xla_backend_optimization_level=0 --xla_force_host_platform_device_count="
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "tests.unit.training.sharded", ";".join(meshes)),
            *map(str, arguments),
        ],
        env={**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": f"{flags}{devices}"},
        stdout=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen) -> dict:
    out, _ = process.communicate(timeout=900)
    assert process.returncode == 0
    return json.loads(out.splitlines()[-1])


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def test_a_sharded_step_has_the_losses_and_gradients_of_one_device():
    """Every axis alone and some together, on eight devices: side by side, for the time's sake."""
    running = [start(meshes, 8) for meshes in (ALONE, TOGETHER)]
    for found, meshes in zip(map(finish, running), (ALONE, TOGETHER), strict=True):
        assert found["devices"] == 8
        assert found["dropped"] > 0  # the capacity is the whole batch's on every mesh
        assert set(found["worst"]) == set(meshes)
        for mesh, (error, name) in found["worst"].items():
            assert error < TOLERANCE, (mesh, name)


def test_what_a_sender_cannot_send_is_counted_and_changes_the_rest_of_the_step_a_little():
    found = finish(start(("expert=4@senders",), 4))
    assert 0 < found["sent"]["expert=4@senders"] < 100
    assert found["worst"]["expert=4@senders"][0] > 1e-4
    assert np.isfinite(found["worst"]["expert=4@senders"][0])


def test_two_processes_have_the_losses_and_gradients_of_one_device():
    port = free_port()
    running = [start(("data=2,expert=2",), 2, 2, number, port) for number in (0, 1)]
    for found in map(finish, running):
        assert found["devices"] == 4
        (error, name), *_ = found["worst"].values()
        assert error < TOLERANCE, name


def test_the_data_axis_takes_the_devices_that_are_left():
    assert mesh_shape("expert=2", 8) == dict(zip(AXES, (1, 4, 2, 1, 1), strict=True))
    assert mesh_shape("", 4)["data"] == 4
    assert math.prod(mesh_shape("replica=2,context=2", 8).values()) == 8


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("data=3", "mesh of 3 devices, there are 8"),
        ("model=8", "'model=8' is not AXIS=SIZE"),
        ("data=0", "'data=0' is not AXIS=SIZE"),
        ("expert=3", "mesh of 3 devices, there are 8"),
    ],
)
def test_a_mesh_that_does_not_fit_is_refused_with_its_name(text, words):
    with pytest.raises(StageError, match=words):
        mesh_shape(text, 8)


def test_parameters_and_their_moments_are_divided_by_name():
    mesh = dict(zip(AXES, (2, 2, 4, 1, 2), strict=True))
    for prefix in ("layers.3.", "1.0.mu.layers.3."):
        assert parameter_spec(f"{prefix}moe.down", (8, 16, 32), mesh) == PartitionSpec(
            "expert", "tensor", "data"
        )
        assert parameter_spec(f"{prefix}attention.query", (16, 16), mesh) == PartitionSpec(
            "data", "tensor"
        )
    assert parameter_spec("norm.weight", (16,), mesh) == PartitionSpec()
    assert parameter_spec("layers.0.moe.router.bias", (8,), mesh) == PartitionSpec()


def test_a_dimension_that_the_axis_does_not_divide_stays_whole():
    assert parameter_spec("head", (16, 33), {"data": 2, "tensor": 2}) == PartitionSpec("data", None)
