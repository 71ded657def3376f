"""A road that is killed again and again ends where an undisturbed one does."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from marin_dagster.attempt import RUNNING, process_is_gone
from marin_dagster.experiments import catalog
from marin_dagster.recipe import Recipe, walk
from marin_dagster.store import Store

TARGET = "tokenized/quickstart@dev"
KILLED_IN = ("crawl", "text", "filtered", "deduped", "decontaminated", "tokenizers")


def start(laboratory, prefix: str) -> subprocess.Popen:
    program = Path(sys.executable).with_name("marin")
    return subprocess.Popen(
        [str(program), "build", TARGET, "--run"],
        cwd=laboratory.folder,
        env={**os.environ, "MARIN_PREFIX": prefix},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def await_running(store: Store, recipe: Recipe) -> None:
    while True:
        last = store.last_attempt(recipe)
        if last is not None and last.state == RUNNING and not process_is_gone(last):
            return
        time.sleep(0.01)


def test_kills_leave_nothing_half_made_and_the_result_is_the_same(quickstart, tmp_path):
    prefix = str(tmp_path / "store")
    store = Store(prefix)
    for stage in KILLED_IN:
        build = start(quickstart, prefix)
        for line in build.stderr:
            if line.rstrip().endswith(f"] {stage}/quickstart@dev"):
                await_running(store, catalog()[f"{stage}/quickstart@dev"])
                os.kill(build.pid, signal.SIGKILL)  # the children have to notice by themselves
                break
        build.wait()
        build.stderr.close()
        assert store.record(catalog()[f"{stage}/quickstart@dev"]) is None
    last = start(quickstart, prefix)
    _, said = last.communicate()
    assert last.returncode == 0, said
    for address, recipe in walk([catalog()[TARGET]]).items():
        record = store.record(recipe)
        assert record is not None
        assert store.damage(recipe, record, checksums=True) == []
        assert record.digest == quickstart.record(address).digest, address
