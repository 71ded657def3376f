import socket
import sys
import time
import types
from pathlib import Path

import pytest
import wandb  # noqa: F401  # here, so that no test replaces it while a thread imports it

from marin_dagster.training.tracker import WandbMirror


@pytest.fixture
def silent_server(monkeypatch):
    """A server that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{server.getsockname()[1]}")
        monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
        yield


def test_a_server_that_never_answers_makes_nobody_wait(silent_server, tmp_path):
    said = []
    started = time.monotonic()
    mirror = WandbMirror(
        "online", str(tmp_path), "checkpoints/x@dev", 1, {}, said.append, finish_seconds=0.5
    )
    for step in range(100):
        mirror.log({"step": step})
    assert time.monotonic() - started < 30  # the server would be waited for a minute
    mirror.finish()
    assert [line.startswith("warning: Weights & Biases did not end") for line in said] == [True]


def test_a_refused_connection_is_one_warning(tmp_path, monkeypatch):
    class Unreachable(Exception):
        pass

    def refuse(**_):
        raise Unreachable("connection refused")

    stub = types.SimpleNamespace(init=refuse, Settings=dict, Error=Unreachable)
    monkeypatch.setitem(sys.modules, "wandb", stub)
    said = []
    mirror = WandbMirror("online", str(tmp_path), "checkpoints/x@dev", 1, {}, said.append)
    mirror.log({"step": 1})
    mirror.finish()
    assert ["connection refused" in line for line in said] == [True]


def test_each_attempt_is_a_run_of_its_own_offline(tmp_path):
    said = []
    for attempt, steps in ((1, range(1, 4)), (2, range(3, 6))):
        mirror = WandbMirror(
            "offline", str(tmp_path), "checkpoints/x@dev", attempt, {}, said.append, 300.0
        )
        for step in steps:
            mirror.log({"step": step, "train/loss": 1.0})
        mirror.finish()
    assert said == []
    assert len(list(Path(tmp_path).rglob("run-*.wandb"))) == 2


def test_the_page_of_a_run_is_told_once_it_is_known(tmp_path, monkeypatch):
    page = "https://wandb.test/lab/runs/1"
    run = types.SimpleNamespace(url=page, log=lambda row, step: None, finish=lambda: None)
    stub = types.SimpleNamespace(init=lambda **_: run, Settings=dict, Error=OSError)
    monkeypatch.setitem(sys.modules, "wandb", stub)
    said = []
    mirror = WandbMirror("online", str(tmp_path), "checkpoints/x@dev", 1, {}, said.append)
    mirror.finish()
    assert (mirror.url, said) == (page, [f"Weights & Biases: {page}"])
    assert (
        WandbMirror("disabled", str(tmp_path), "checkpoints/x@dev", 1, {}, said.append).url is None
    )
