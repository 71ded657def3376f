"""A finished run goes on as another artifact, from a resume point that it kept (C7)."""

import dataclasses
import os
import shutil

import pytest

from marin_dagster.recipe import StageError
from marin_dagster.training.metrics import read_events, read_metrics
from marin_dagster.training.optimizer import AdamW
from marin_dagster.training.pretrain import Pretrain
from marin_dagster.training.recovery import KeepEvery
from marin_dagster.training.schedule import Extension, Linear
from tests.fake_context import FakeContext, build
from tests.unit.data.corpus import build_tokenizer
from tests.unit.training.test_pretrain import PRETRAIN, QUIET, TRAIN

SCHEDULE = Linear(warmup_steps=2, final_ratio=0.1)
RUN = dataclasses.replace(
    PRETRAIN,
    num_steps=6,
    optimizer=AdamW(learning_rate=1e-2, schedule=SCHEDULE),
    keep_checkpoints=(KeepEvery(every=2),),
    steps_per_checkpoint=None,
    steps_per_eval=None,
    validation=(),
    sample_prompts=(),
)


def extended(base: Pretrain = RUN, **changes) -> Pretrain:
    fields = {"planned_steps": 6, "at": 4, "policy": "keep"}
    fields |= {name: changes.pop(name) for name in list(changes) if name in fields}
    optimizer = dataclasses.replace(RUN.optimizer, schedule=Extension(schedule=SCHEDULE, **fields))
    fresh = {"name": "tiny-longer", "num_steps": 8, "optimizer": optimizer, "extends": base}
    return dataclasses.replace(RUN, **{**fresh, **changes})


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("extended")
    build_tokenizer(root)
    for recipe in (TRAIN, RUN, extended()):
        build(recipe, root, **QUIET)
    return root


def test_points_that_a_run_keeps_are_files_of_its_artifact(root):
    folder = FakeContext(RUN, root).path(RUN)
    assert sorted(os.listdir(os.path.join(folder, "resume"))) == [
        f"step-0000000{step}-attempt-0001" for step in (2, 4, 6)
    ]


def test_an_extended_run_goes_on_as_if_it_had_never_stopped(root):
    short, longer = (
        os.path.join(FakeContext(run, root).path(run), "metrics.jsonl") for run in (RUN, extended())
    )
    rows, planned = read_metrics(longer), {row["step"]: row for row in read_metrics(short)}
    assert [row["step"] for row in rows] == [5, 6, 7, 8]
    for row in rows[:2]:  # policy keep: the same curve up to its end
        for name in ("train/loss", "train/grad_norm", "train/learning_rate"):
            assert row[name] == planned[row["step"]][name]
    assert rows[-1]["train/learning_rate"] == pytest.approx(1e-3)
    (event,) = [event for event in read_events(longer) if event["event"] == "extend"]
    assert (event["step"], event["run"]) == (4, RUN.address)
    assert "extended to 8 from step 4 by policy 'keep'" in event["how"]


def test_the_summary_marks_the_branch(root, tmp_path):
    shutil.copytree(root / "artifacts", tmp_path / "artifacts")
    longer = extended()
    shutil.rmtree(tmp_path / "artifacts" / longer.address)
    summary = build(longer, tmp_path, **QUIET)
    assert summary.notes["Extension"].startswith(f"after step 4 of {RUN.address}: the run of 6")
    assert summary.numbers["steps"] == 8


def test_a_damaged_origin_is_refused(root, tmp_path):
    shutil.copytree(root / "artifacts", tmp_path / "artifacts")
    longer = extended()
    shutil.rmtree(tmp_path / "artifacts" / longer.address)
    ctx = FakeContext(longer, tmp_path, **QUIET)
    point = os.path.join(ctx.path(RUN), "resume", "step-00000004-attempt-0001", "facts.json")
    with open(point, "a", encoding="utf-8") as file:
        file.write(" ")
    with pytest.raises(StageError, match=f"no resume point of step 4 of {RUN.address}") as caught:
        longer.build(ctx)
    assert caught.value.reason == "bad_input"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"optimizer": RUN.optimizer}, "has to say how its learning rate goes on"),
        ({"planned_steps": 7}, "num_steps 6 → 7"),
        ({"at": 3}, "does not keep"),
        ({"num_steps": 4}, "num_steps=4 is not above at=4"),
        ({"seed": 1}, "seed of checkpoints/tiny-longer@dev is 1, and 0 in checkpoints/tiny@dev"),
        ({"snapshots": (3,)}, "begin at or before step 4"),
    ],
)
def test_an_extension_that_is_another_run_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        extended(**changes)


def test_a_step_that_an_extended_run_never_did_is_refused():
    optimizer = extended().optimizer
    again = dataclasses.replace(
        optimizer,
        schedule=Extension(schedule=optimizer.schedule, planned_steps=8, at=4, policy="keep"),
    )
    fresh = {"name": "tiny-longest", "num_steps": 10, "extends": extended()}
    with pytest.raises(ValueError, match="from step 4, whose resume point that run does not keep"):
        dataclasses.replace(RUN, **fresh, optimizer=again)


def test_only_the_steps_to_come_cost_something():
    assert extended().tokens == 4 * RUN.batch_size * RUN.model.seq_len
    assert extended().cost({})["flops"] == pytest.approx(RUN.cost({})["flops"] * 4 / 6)
