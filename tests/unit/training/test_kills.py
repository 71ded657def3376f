"""A training that is killed at random steps ends as one that nobody disturbed."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from marin_dagster.training.metrics import read_events, read_metrics
from tests.unit.training.test_loop import context

STEPS = 24

CHILD = """
import dataclasses, sys, jax
from pathlib import Path
from marin_dagster.recipe import Devices, Placement
from marin_dagster.training.loop import train
from marin_dagster.training.recovery import Recovery
from tests.unit.models.test_layers import TINY
from tests.unit.training.test_loop import ROWS, RUN, VOCAB, CountingRows, context
steps = int(sys.argv[2])
how = dataclasses.replace(RUN, num_steps=steps, steps_per_checkpoint=3, recovery=Recovery())
class Rows(CountingRows):
    def metrics(self, step):
        batch = self.batch(step)
        return {"mixture/context": 0, "rows": batch.tokens[:, 0].tolist()}
ctx = context(Path(sys.argv[1]))
ctx.placement = Placement(wandb_mode="disabled", devices=Devices(mesh=sys.argv[3]))
train(ctx, TINY.make(VOCAB, jax.random.key(0)), Rows(), {}, ROWS, how)
"""


def start(root: Path, cache: Path, devices: int = 1) -> subprocess.Popen:
    flags = "--xla_backend_optimization_level=0 --xla_force_host_platform_device_count"
    environment = {
        **os.environ,
        "XLA_FLAGS": f"{flags}={devices}",
        "JAX_COMPILATION_CACHE_DIR": str(cache),  # each child compiles what the first one did
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    command = [sys.executable, "-c", CHILD, str(root), str(STEPS), ""]
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)


def log_of(root: Path) -> str:
    return os.path.join(context(root).work, "metrics.jsonl")


def rows_of(root: Path) -> list[dict]:
    return read_metrics(log_of(root))


def finish(process: subprocess.Popen) -> None:
    assert process.wait(300) == 0, process.communicate()[1]


def kill_at(root: Path, process: subprocess.Popen, step: int) -> None:
    while process.poll() is None:
        rows = rows_of(root)
        if rows and rows[-1]["step"] >= step:
            break
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.communicate()


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("compiled")


@pytest.fixture(scope="module")
def whole(tmp_path_factory, cache) -> list[dict]:
    root = tmp_path_factory.mktemp("whole")
    finish(start(root, cache))
    return rows_of(root)


def same(rows: list[dict], whole: list[dict], tolerance: float) -> None:
    assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
    assert [row["rows"] for row in rows] == [row["rows"] for row in whole]
    losses, wanted = ([row["train/loss"] for row in some] for some in (rows, whole))
    np.testing.assert_allclose(losses, wanted, rtol=0, atol=tolerance)


def kill_often(root: Path, cache: Path, kills: int, seed: int, devices: list[int]) -> None:
    rng, done = random.Random(seed), 0
    for number in range(kills):
        process = start(root, cache, devices[number % len(devices)])
        done = min(STEPS - 1, done + rng.randint(1, max(2, 2 * STEPS // kills)))
        kill_at(root, process, done)
        done = max([0, *(row["step"] for row in rows_of(root))])
    finish(start(root, cache, devices[kills % len(devices)]))
    losses = [row for row in read_events(log_of(root)) if row["event"] == "resume_loss"]
    assert all(abs(row["difference"]) < 1e-6 for row in losses)


def test_a_run_that_was_killed_twice_has_the_rows_and_losses_of_one_that_was_not(
    tmp_path, cache, whole
):
    kill_often(tmp_path, cache, 2, 0, [1])
    same(rows_of(tmp_path), whole, 0.0)


@pytest.mark.slow
def test_a_run_goes_on_with_half_the_devices(tmp_path, cache, whole):
    kill_often(tmp_path, cache, 1, 1, [4, 2])
    same(rows_of(tmp_path), whole, 1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("devices", [[1], [4, 2]])
def test_twenty_kills_change_nothing(tmp_path, cache, whole, devices):
    kill_often(tmp_path, cache, 20, 2, devices)
    same(rows_of(tmp_path), whole, 1e-6)
