"""Snapshots of a real, tiny training: published on its way, also by the attempt after a kill."""

import dataclasses
import os
import shutil
from pathlib import Path

import equinox as eqx
import pytest

from marin_dagster.data.tokenizer import load_tokenizer
from marin_dagster.recipe import StageError
from marin_dagster.training.metrics import read_metrics
from marin_dagster.training.model_files import load_model
from marin_dagster.training.outputs import Snapshots
from tests.fake_context import FakeContext
from tests.unit.data.corpus import TOKENIZER, build_tokenizer
from tests.unit.data.toy_documents import in_this_process
from tests.unit.training.test_pretrain import PRETRAIN, QUIET, TRAIN, build

RUN = dataclasses.replace(
    PRETRAIN,
    num_steps=6,
    snapshots=(2, 4),
    steps_per_checkpoint=3,
    validation=(),
    sample_prompts=(),
)
EARLY, LATE = RUN.makes


class Killed(FakeContext):
    """Loses the first snapshot on its way, and dies when it publishes the second."""

    def publish(self, recipe, folder, summary):
        if recipe.address == LATE.address:
            raise StageError("killed", "as asked")


@pytest.fixture(scope="module")
def inputs(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("outputs")
    build_tokenizer(root)
    with in_this_process():
        build(TRAIN, root)
    return root


@pytest.fixture(scope="module")
def built(inputs) -> FakeContext:
    ctx = FakeContext(RUN, inputs, **QUIET)
    RUN.build(ctx)
    return ctx


def test_snapshots_are_models_of_their_step_with_the_metrics_so_far(built):
    assert list(built.published) == [EARLY.address, LATE.address]
    assert built.published[LATE.address].numbers["steps"] == 4
    rows = read_metrics(os.path.join(built.path(LATE), "metrics.jsonl"))
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    models = [load_model(built.path(recipe))[0] for recipe in (EARLY, LATE, RUN)]
    assert not eqx.tree_equal(models[0], models[1])
    assert not eqx.tree_equal(models[1], models[2])


def test_what_a_killed_attempt_wrote_and_did_not_publish_is_published(built, inputs, tmp_path):
    shutil.copytree(inputs / "artifacts", tmp_path / "artifacts")
    for recipe in (*RUN.makes, RUN):
        shutil.rmtree(tmp_path / "artifacts" / recipe.address)
    with pytest.raises(StageError, match="as asked"):
        RUN.build(Killed(RUN, tmp_path, **QUIET))
    ctx = FakeContext(RUN, tmp_path, **QUIET)
    RUN.build(ctx)
    assert "attempt 2 goes on after step 3; logged steps to be done again: 1" in ctx.messages
    assert list(ctx.published) == [EARLY.address, LATE.address]
    for recipe in RUN.makes:
        assert eqx.tree_equal(load_model(ctx.path(recipe))[0], load_model(built.path(recipe))[0])
    assert os.listdir(os.path.join(ctx.work, "snapshots")) == []


def test_half_a_draft_is_thrown_away(built):
    snapshots = Snapshots(RUN, built, load_tokenizer(built.path(TOKENIZER)))
    half = Path(built.work, "snapshots", ".step-00000002")
    half.mkdir(parents=True)
    snapshots.publish_left_over()
    assert not half.exists()


@pytest.mark.parametrize("steps", [(0,), (3, 3), (4, 2), (6,), (-1,)])
def test_snapshots_rise_within_the_run(steps):
    with pytest.raises(ValueError, match="give rising steps above 0 and below num_steps=6"):
        dataclasses.replace(RUN, snapshots=steps)
