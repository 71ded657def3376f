"""A training that moves from pods to TPU hosts and back ends as one that nobody disturbed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from marin_dagster.launch.base import Job
from marin_dagster.training.metrics import read_events, read_metrics
from tests.integration import test_kubernetes, test_tpu
from tests.integration.test_kubernetes import end_of, until
from tests.integration.trainee import STEPS, work_of
from tests.servers import BUCKET, free_port

COMMAND = [sys.executable, "-m", "tests.integration.trainee"]
LIMIT_SECONDS = 300


def losses(root: Path) -> list[float]:
    return [row["train/loss"] for row in read_metrics(str(work_of(root, 0) / "metrics.jsonl"))]


def trained_here(root: Path, variables: dict[str, str]) -> list[float]:
    """The losses of two processes of this machine that nobody disturbs."""
    root.mkdir()
    place = {"MARIN_PROCESSES": "2", "MARIN_COORDINATOR": f"127.0.0.1:{free_port()}"}
    both = [
        subprocess.Popen(
            [*COMMAND, str(root)],
            env={**os.environ, **variables, **place, "MARIN_PROCESS": str(number)},
        )
        for number in range(2)
    ]
    assert [process.wait(LIMIT_SECONDS) for process in both] == [0, 0]
    return losses(root)


@pytest.fixture
def variables(tmp_path) -> dict[str, str]:
    """By which processes use what others have compiled."""
    least = "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"
    return {"JAX_COMPILATION_CACHE_DIR": str(tmp_path / "compiled"), least: "0"}


def test_a_preempted_training_goes_on_elsewhere_at_the_same_step(
    cluster, zone, variables, tmp_path
):
    root = tmp_path / "training"
    root.mkdir()
    pods = test_kubernetes.launcher_of(cluster, grace_seconds=60)
    hosts = test_tpu.launcher_of(zone, grace_seconds=60.0)
    attempts = (
        (pods, test_kubernetes.GPU, lambda: cluster.disrupt(1)),
        (hosts, test_tpu.SLICE, lambda: zone.preempt(60.0)),
        (pods, test_kubernetes.GPU, None),
    )
    for number, (launcher, host, preempt) in enumerate(attempts):
        handle = launcher.submit(
            Job(
                name="checkpoints/toy",
                command=[*COMMAND, str(root)],
                environment=variables,
                processes=2,
                host=host,
                logs=f"gs://{BUCKET}/training/{number}",
            )
        )
        before = len(losses(root)) if number else 0
        if preempt is not None:
            metrics = work_of(root, 0) / "metrics.jsonl"
            until(lambda path=metrics, n=before: path.exists() and len(losses(root)) > n)
            preempt()
        state = end_of(launcher, handle)
        launcher.cancel(handle)
        assert cluster.left() + zone.left() == []
        assert state.reason == ("preempted" if preempt else None), launcher.logs(handle)
        assert state.succeeded == (preempt is None)
    events = read_events(str(work_of(root, 0) / "metrics.jsonl"))
    saved = [event["step"] for event in events if event["event"] == "preemption"]
    begun = [event["step"] for event in events if event["event"] == "attempt"]
    assert 0 < saved[0] < saved[1] < STEPS
    assert begun == [0, *saved]
    assert losses(root) == trained_here(tmp_path / "local", variables)
    assert len(losses(root)) == STEPS
