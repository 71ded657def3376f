"""A process that is told to end while it trains saves what it has, wherever it is."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from marin_dagster.training.metrics import read_events, read_metrics
from tests.unit.training.test_loop import context
from tests.unit.training.toy_process import AT, GRACE_SECONDS, STEPS


def start(root: Path, where: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.unit.training.toy_process", str(root), where],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def end(process: subprocess.Popen) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=300)
    return process.returncode, out, err


def log_of(root: Path) -> str:
    return os.path.join(context(root).work, "metrics.jsonl")


def interrupted(root: Path, where: str, number: int = signal.SIGTERM) -> tuple[int, str, float]:
    """Trains up to a place and sends the signal there; the code, the output, and the seconds."""
    process = start(root, where)
    assert process.stdout is not None
    assert process.stdout.readline() == f"{where}\n", process.communicate()[1]
    began = time.monotonic()
    process.send_signal(number)
    code, out, _ = end(process)
    return code, out, time.monotonic() - began


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    roots = {where: tmp_path_factory.mktemp(where) for where in ("wide", "nowhere")}
    for process in [start(root, where) for where, root in roots.items()]:
        assert end(process)[0] == 0
    return {where: read_metrics(log_of(root)) for where, root in roots.items()}


@pytest.mark.parametrize(("where", "saved"), [("compile", AT), ("evaluation", AT), ("step", AT)])
def test_sigterm_loses_no_step_that_was_done(uninterrupted, tmp_path, where, saved):
    code, out, seconds = interrupted(tmp_path / "cut", where)
    assert code == 75, out
    assert seconds < GRACE_SECONDS
    assert out.startswith("preempted SIGTERM: ")
    [event] = [row for row in read_events(log_of(tmp_path / "cut")) if row["event"] == "preemption"]
    assert (event["step"], event["lost_steps"]) == (saved, 0)
    usual = "wide" if where == "compile" else "nowhere"
    code, out, err = end(start(tmp_path / "cut", usual))
    assert code == 0, err
    assert f"attempt 2 goes on after step {saved}\n" in out
    cut, whole = read_metrics(log_of(tmp_path / "cut")), uninterrupted[usual]
    assert [row["step"] for row in cut] == list(range(1, STEPS + 1))
    assert [row["train/loss"] for row in cut] == [row["train/loss"] for row in whole]
    assert [row.get("eval/loss") for row in cut] == [row.get("eval/loss") for row in whole]


def test_a_step_that_does_not_end_within_the_grace_is_said_to_be_lost(tmp_path):
    code, out, seconds = interrupted(tmp_path, "endless")
    assert code == 75
    assert seconds < GRACE_SECONDS  # of which it was given a part
    assert f"fell back to step 4, {AT - 1 - 4} steps lost" in out


def test_sigint_saves_too_and_is_a_person_who_cancels(tmp_path):
    code, out, _ = interrupted(tmp_path, "evaluation", signal.SIGINT)
    assert (code, out) == (130, f"user_cancel SIGINT: saved step {AT}\n")


def test_a_step_that_hangs_ends_the_process_with_its_stacks_and_a_reason(tmp_path):
    code, out, err = end(start(tmp_path, "hang"))
    assert code == 124
    assert f"hang step {AT} has taken more than" in out
    assert "toy_process.py" in err  # where it stands
    [event] = [row for row in read_events(log_of(tmp_path)) if row["event"] == "hang"]
    assert event["step"] == AT - 1
