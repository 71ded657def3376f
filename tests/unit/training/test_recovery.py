"""A run that meets bad data: it skips, goes back, or ends, and its history says so."""

import dataclasses
import os

import equinox as eqx
import jax
import numpy as np
import pytest

from marin_dagster.recipe import StageError
from marin_dagster.training import loop
from marin_dagster.training.loop import train
from marin_dagster.training.metrics import read_events, read_metrics
from marin_dagster.training.recovery import Recovery
from tests.unit.training import toy
from tests.unit.training.test_loop import ROWS, RUN, CountingRows, context

POLICY = Recovery(window=16, min_samples=8, max_skips=2, max_rollbacks=1)
HOW = dataclasses.replace(RUN, num_steps=12, steps_per_checkpoint=3, recovery=POLICY)


@pytest.fixture(scope="module", autouse=True)
def quick_step():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "make_step", toy.make_step)
        patch.setattr(loop, "initial_state", toy.initial_state)
        patch.setattr(loop, "check_memory", lambda *_: None)
        yield


class Rows(CountingRows):
    """Rows that are poisonous at some data steps, and remember which were asked for."""

    def __init__(self, bad: set[int], dies_at: int | None = None):
        super().__init__(dies_at)
        self.bad, self.asked = bad, []

    def batch(self, step):
        batch = super().batch(step)
        tokens, targets = batch.tokens % toy.VOCAB, batch.targets % toy.VOCAB
        batch = batch._replace(tokens=tokens, targets=targets)
        self.asked.append(step)
        weights = np.full_like(batch.loss_weights, np.nan) if step in self.bad else None
        return batch if weights is None else batch._replace(loss_weights=weights)


def run(root, rows, how=HOW, **position):
    model = toy.new_model()
    return train(context(root), model, rows, {}, ROWS, how, **position)[:2]


def log_of(root) -> str:
    return os.path.join(context(root).work, "metrics.jsonl")


def events(root, *kinds):
    return [row for row in read_events(log_of(root)) if row["event"] in kinds]


@pytest.fixture(scope="module")
def smooth(tmp_path_factory):
    return run(tmp_path_factory.mktemp("smooth"), Rows(set()))


def test_a_policy_that_never_acts_changes_no_number(smooth, tmp_path):
    plain = run(tmp_path, Rows(set()), dataclasses.replace(HOW, recovery=None))
    assert [row["train/loss"] for row in plain[1]] == [row["train/loss"] for row in smooth[1]]


def test_a_bad_step_is_skipped_and_keeps_the_model(smooth, tmp_path):
    model, history = run(tmp_path, Rows({4}))
    assert [row["step"] for row in history] == list(range(1, 13))
    assert [row["train/skipped"] for row in history] == [0] * 4 + [1] + [0] * 7
    assert [row["step"] for row in events(tmp_path, "skip")] == [5]
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(eqx.filter(model, eqx.is_array)))
    # The step after sees what the skipped one saw: the norm of its parameters is the same.
    assert history[5]["train/param_norm"] == history[4]["train/param_norm"]
    rates = [row["train/learning_rate"] for row in history]
    assert rates == [row["train/learning_rate"] for row in smooth[1]]
    assert not events(tmp_path, "rollback")


def test_bad_steps_in_a_row_lead_back_and_past_their_data(tmp_path):
    rows = Rows({7, 8})
    _, history = run(tmp_path, rows)
    assert [row["step"] for row in history] == list(range(1, 13))
    assert [row["attempt"] for row in history] == [1] * 6 + [2] * 6
    assert not any(row["train/skipped"] for row in history)
    [back] = events(tmp_path, "rollback")
    assert (back["step"], back["reached"], back["data_offset"], back["attempt"]) == (6, 9, 3, 2)
    assert sorted(set(rows.asked)) == list(range(15))  # twelve that count, three passed over


def test_a_run_that_was_killed_after_it_went_back_stays_on_its_new_way(tmp_path):
    whole = run(tmp_path / "whole", Rows({7, 8}))
    with pytest.raises(StageError, match="taken away"):
        run(tmp_path / "cut", Rows({7, 8}, dies_at=11))
    model, history = run(tmp_path / "cut", Rows({7, 8}))
    assert eqx.tree_equal(model, whole[0])
    assert [row["train/loss"] for row in history] == [row["train/loss"] for row in whole[1]]
    assert len(events(tmp_path / "cut", "rollback")) == 1


def test_a_spent_budget_ends_the_run_as_diverged_with_its_numbers(tmp_path):
    with pytest.raises(StageError, match="1 rollbacks did not help") as caught:
        run(tmp_path, Rows({7, 8, 12, 13}))
    assert caught.value.reason == "diverged"
    assert caught.value.evidence["rollbacks"] == 1
    assert caught.value.evidence["skips"] == 2
    assert not np.isfinite(read_metrics(log_of(tmp_path))[-1]["train/loss"])


def test_a_run_that_is_bad_from_the_start_has_nothing_to_go_back_to(tmp_path):
    with pytest.raises(StageError, match="no resume point is from before step 1"):
        run(tmp_path, Rows({0, 1}))


def test_a_resume_tells_what_is_done_again_and_compares_the_loss(tmp_path):
    with pytest.raises(StageError, match="taken away"):
        run(tmp_path, Rows(set(), dies_at=8))
    ctx = context(tmp_path)
    train(ctx, toy.new_model(), Rows(set()), {}, ROWS, HOW)
    assert ctx.messages[-1] == "attempt 2 goes on after step 6; logged steps to be done again: 2"
    [resume] = events(tmp_path, "resume")
    assert resume["saved_loss"] == resume["logged_loss"]
    [compared] = events(tmp_path, "resume_loss")
    assert (compared["step"], compared["difference"]) == (7, 0.0)


def test_a_resume_on_other_numbers_than_those_logged_is_an_alarm(tmp_path):
    class Others(Rows):
        def batch(self, step):
            return super().batch(step + 100)

    with pytest.raises(StageError, match="taken away"):
        run(tmp_path, Rows(set(), dies_at=8))
    ctx = context(tmp_path)
    train(ctx, toy.new_model(), Others(set()), {}, ROWS, HOW)
    assert any(line.startswith("alarm: loss") for line in ctx.messages)


def test_a_resume_hands_the_position_of_the_data_to_who_can_refuse_it(tmp_path):
    def refuse(stored):
        raise StageError("bad_input", f"these are not the data before token {stored['token']}")

    with pytest.raises(StageError, match="taken away"):
        run(tmp_path, Rows(set(), dies_at=8), position=lambda step: {"token": step * 4})
    with pytest.raises(StageError, match="not the data before token 24"):
        run(tmp_path, Rows(set()), check=refuse)


def test_a_resume_with_another_schedule_is_refused_with_what_differs(tmp_path):
    with pytest.raises(StageError, match="taken away"):
        run(tmp_path, Rows(set(), dies_at=8))
    with pytest.raises(StageError, match="num_steps 12 → 20"):
        run(tmp_path, Rows(set()), dataclasses.replace(HOW, num_steps=20))


def test_events_and_rows_stand_on_one_time_line(tmp_path):
    run(tmp_path, Rows({4}))
    kinds = [row["event"] for row in read_events(log_of(tmp_path))]
    assert kinds == ["attempt", "checkpoint", "skip", *["checkpoint"] * 3]
    assert all(
        {"attempt", "step", "seconds"} <= row.keys() for row in read_events(log_of(tmp_path))
    )


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_of_batches_that_dies_ends_the_run(tmp_path):
    class Broken(Rows):
        def batch(self, step):
            raise KeyError(step)

    with pytest.raises(RuntimeError, match="thread that makes batches has died"):
        run(tmp_path, Broken(set()))
