"""Steps of one build side by side, in real processes on a real instance."""

import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import dagster as dg
import pytest

from marin_dagster.experiments import find
from marin_dagster.process import process_exists
from marin_dagster.store import Store

ROOT = Path(__file__).resolve().parents[2]
MARIN = [sys.executable, "-W", "ignore", "-c", "from marin_dagster.cli import main; main()"]


@pytest.fixture
def folder(tmp_path, prefix) -> Path:
    """A folder with the default instance, as a checkout is."""
    shutil.copy(ROOT / "dagster.yaml", tmp_path)
    return tmp_path


def start(folder: Path, *words: str) -> subprocess.Popen:
    return subprocess.Popen(
        [*MARIN, "build", *words, "--run"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def build(folder: Path, *words: str) -> tuple[int, str]:
    process = start(folder, *words)
    output, _ = process.communicate(timeout=400)
    return process.returncode, output


def instance(folder: Path) -> dg.DagsterInstance:
    return dg.DagsterInstance.local_temp(str(folder / ".dagster"))


def test_steps_that_do_not_need_each_other_run_side_by_side(folder, prefix):
    code, output = build(folder, "deduped/meeting@dev")
    assert code == 0, output
    store = Store(prefix)
    left, right = (store.record(find(f"filtered/{side}@dev")) for side in ("left", "right"))
    assert left.summary.numbers["process"] != right.summary.numbers["process"]
    assert "[4/4] deduped/meeting@dev" in output


def test_several_targets_share_one_plan_and_each_artifact_is_built_once(folder, prefix):
    code, output = build(folder, "deduped/toy@2026.*", "raw/toy@2026.01.01")
    assert code == 0, output
    assert "[6/6]" in output
    for version in ("2026.01.01", "2026.02.03"):
        attempts = Store(prefix).attempts(find(f"deduped/toy@{version}"))
        assert [info.state for info in attempts] == ["succeeded"]


def test_a_step_whose_process_is_killed_fails_alone_and_says_so(folder, prefix):
    code, output = build(folder, "filtered/doomed@dev", "filtered/partner@dev")
    assert code == 1
    assert (
        "filtered/doomed@dev failed: killed: the process of its run was ended by SIGKILL" in output
    )
    store = Store(prefix)
    assert store.record(find("filtered/doomed@dev")) is None
    assert store.record(find("filtered/partner@dev")) is not None
    with instance(folder) as opened:
        states = {run.tags["marin/artifact"]: run.status for run in _steps(opened)}
    assert states["filtered/doomed__dev"] == dg.DagsterRunStatus.FAILURE


def _steps(opened: dg.DagsterInstance) -> list[dg.DagsterRun]:
    return [run for run in opened.get_runs() if "marin/artifact" in run.tags]


def processes_of_two(prefix: str) -> list[int]:
    """Waits until two steps are under way; returns their process numbers."""
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline:
        pids = [path.read_text() for path in Path(f"{prefix}.meeting").glob("*")]
        if len(pids) == 2 and all(pids):
            return [int(pid) for pid in pids]
        time.sleep(0.05)
    raise AssertionError("two steps never ran side by side")


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)]
)
def test_an_interrupt_ends_all_steps_and_frees_their_addresses(folder, prefix, number):
    process = start(folder, "filtered/lonely@dev", "checkpoints/toy@dev", "filtered/doomed@dev")
    pids = processes_of_two(prefix)
    sent = time.monotonic()
    process.send_signal(number)
    output, _ = process.communicate(timeout=200)
    assert process.returncode != 0
    assert time.monotonic() - sent < 90
    assert not [pid for pid in pids if process_exists(pid)], output
    last = Store(prefix).last_attempt(find("filtered/lonely@dev"))
    assert (last.state, last.reason) == ("failed", "user_cancel")
    with instance(folder) as opened:
        assert [run.run_id for run in opened.get_runs() if not run.is_finished] == []


def test_a_killed_build_takes_its_steps_with_it(folder, prefix):
    process = start(folder, "filtered/lonely@dev", "filtered/doomed@dev")
    pids = processes_of_two(prefix)
    process.kill()
    process.wait()
    deadline = time.monotonic() + 60
    while any(process_exists(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not [pid for pid in pids if process_exists(pid)]
