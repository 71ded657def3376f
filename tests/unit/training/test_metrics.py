import sys
import types
import warnings

from marin_dagster.training.metrics import MetricsLog, WandbMirror, read_metrics


def write(path: str, steps: range, value: float) -> None:
    log = MetricsLog(path)
    for step in steps:
        log.write(step, {"train/loss": value})
    log.close()


def test_the_history_has_each_step_once_and_the_last_attempt_wins(tmp_path):
    path = str(tmp_path / "metrics.jsonl")
    write(path, range(1, 31), 1.0)
    write(path, range(21, 41), 2.0)
    rows = read_metrics(path)
    assert [row["step"] for row in rows] == list(range(1, 41))
    assert [row["attempt"] for row in rows] == [1] * 20 + [2] * 20


def test_a_line_that_a_killed_attempt_left_unfinished_is_ignored(tmp_path):
    path = str(tmp_path / "metrics.jsonl")
    write(path, range(1, 4), 1.0)
    with open(path, "a") as file:
        file.write('{"attempt": 1, "st')
    write(path, range(3, 5), 2.0)
    assert [row["train/loss"] for row in read_metrics(path)] == [1.0, 1.0, 2.0, 2.0]


def test_an_outage_of_the_tracker_is_one_warning(tmp_path, monkeypatch):
    class Unreachable(Exception):
        pass

    def refuse(**_):
        raise Unreachable("connection refused")

    stub = types.SimpleNamespace(init=refuse, Settings=dict, Error=Unreachable)
    monkeypatch.setitem(sys.modules, "wandb", stub)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        mirror = WandbMirror("online", str(tmp_path), "x", {})
        mirror.log({"step": 1})
        mirror.finish()
    assert ["connection refused" in str(warning.message) for warning in caught] == [True]
