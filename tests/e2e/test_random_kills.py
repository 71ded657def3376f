"""Builds that are killed at random points, stage by stage, end where undisturbed ones do."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from marin_dagster.attempt import RUNNING
from marin_dagster.recipe import Recipe, walk
from marin_dagster.record import Record
from marin_dagster.store import Store
from tests.e2e.miniature import recipes

pytestmark = pytest.mark.slow
KILLS = 3  # of each artifact
LAST = "reports/quickstart@dev"
SEED = int(os.environ.get("SEED", "1"))
TIMED = ("metrics.jsonl", "plots/", "index.html")  # files that hold times of the clock


@pytest.fixture(scope="module")
def environment(tmp_path_factory) -> dict[str, str]:
    cache = tmp_path_factory.mktemp("compiled")  # or compiling would be most of what is killed
    return {
        **os.environ,
        "JAX_COMPILATION_CACHE_DIR": str(cache),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "0",
    }


def road() -> dict[str, Recipe]:
    """What is built and killed: the recipes that `LAST` needs, and itself."""
    return walk([recipes()[LAST]])


def start(prefix: str, environment: dict[str, str], *addresses: str) -> subprocess.Popen:
    words = [sys.executable, "-W", "ignore", "-m", "tests.e2e.miniature", prefix, *addresses]
    return subprocess.Popen(
        words, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )


def finish(process: subprocess.Popen) -> None:
    _, said = process.communicate(timeout=600)
    assert process.returncode == 0, said


def disturb(store: Store, environment: dict[str, str], seconds: dict[str, float]) -> Counter[str]:
    """Builds the road and kills it in each artifact, at a random point of the time that it takes.

    Returns how often an artifact was under way when it was killed.
    """
    rng, kills, addresses = random.Random(SEED), Counter[str](), list(road())
    process = start(store.prefix, environment, *addresses)
    for number, (address, recipe) in enumerate(road().items()):
        for _ in range(KILLS):
            known = len(store.attempts(recipe))
            while store.record(recipe) is None and len(store.attempts(recipe)) == known:
                assert process.poll() is None, process.stderr.read() if process.stderr else ""
                time.sleep(0.005)
            time.sleep(rng.uniform(0.0, 0.9 * seconds[address]))
            process.send_signal(signal.SIGKILL)
            process.communicate()
            kills[address] += store.attempts(recipe)[-1].state == RUNNING
            process = start(store.prefix, environment, *addresses[number:])
    finish(process)
    return kills


def content(record: Record) -> dict[str, str]:
    """The files that do not hold times, by checksum."""
    return {f.path: f.sha256 for f in record.files if not f.path.startswith(TIMED)}


def test_kills_at_random_points_change_nothing(tmp_path, environment):
    quiet, disturbed = Store(str(tmp_path / "quiet")), Store(str(tmp_path / "disturbed"))
    finish(start(quiet.prefix, environment, *road()))
    expected = {address: quiet.record(recipe) for address, recipe in road().items()}
    kills = disturb(disturbed, environment, {key: found.seconds for key, found in expected.items()})
    for address, recipe in road().items():
        record = disturbed.record(recipe)
        assert record is not None
        assert {info["reason"] for info in record.attempts} <= {"killed"}
        assert disturbed.damage(recipe, record, checksums=True) == []
        assert record.summary.counts == expected[address].summary.counts, address
        assert content(record) == content(expected[address]), address
        assert not Path(disturbed.url(recipe), ".work").exists()
    print(json.dumps(kills))
    assert sum(kills.values()) >= len(road()) * KILLS // 2
