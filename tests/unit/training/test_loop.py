import dataclasses
import functools
import json
import os
from pathlib import Path
from typing import ClassVar

import equinox as eqx
import jax
import numpy as np
import pytest

from marin_dagster.data.mixture import Batch
from marin_dagster.kinds import Checkpoint
from marin_dagster.models.router import router_bias, with_router_bias
from marin_dagster.models.transformer import Transformer
from marin_dagster.recipe import Placement, StageError
from marin_dagster.training import loop, model_files, points
from marin_dagster.training.balance import Balance
from marin_dagster.training.loop import Run, train
from marin_dagster.training.metrics import read_metrics
from marin_dagster.training.optimizer import AdamW
from marin_dagster.training.schedule import WarmupStableDecay
from marin_dagster.training.step import make_step
from tests.fake_context import FakeContext
from tests.unit.models.test_layers import TINY

VOCAB, ROWS = 30, 4
GOLDEN = Path(__file__).parents[2] / "golden" / "losses.json"
RUN = Run(
    optimizer=AdamW(learning_rate=1e-2, schedule=WarmupStableDecay(warmup_steps=2, decay_steps=4)),
    num_steps=20,
    z_loss_weight=1e-4,
    steps_per_checkpoint=4,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ToyRun(Checkpoint):
    stage: ClassVar[str] = "checkpoints"

    def build(self, ctx):
        raise NotImplementedError


class CountingRows:
    """Rows that count up from a random start, so that the next token can be learned."""

    def __init__(self, dies_at: int | None = None):
        self.dies_at = dies_at

    def batch(self, step: int) -> Batch:
        if step == self.dies_at:
            raise StageError("preempted", "the machine was taken away")
        start = np.random.Generator(np.random.Philox(key=step)).integers(0, VOCAB, (ROWS, 1))
        line = ((start + np.arange(TINY.seq_len + 1)) % VOCAB).astype(np.int32)
        return Batch(
            tokens=line[:, :-1],
            targets=line[:, 1:],
            loss_weights=np.ones((ROWS, TINY.seq_len), np.float32),
            segment_ids=np.zeros((ROWS, TINY.seq_len), np.int32),
            sources=np.zeros(ROWS, np.int32),
        )

    def metrics(self, step: int) -> dict[str, float]:
        return {"mixture/stage": step // 5}


def context(root: Path) -> FakeContext:
    recipe = ToyRun(name="toy", version="dev")
    return FakeContext(recipe, root, placement=Placement(wandb_mode="disabled"))


def run(root: Path, rows: CountingRows | None = None, how: Run = RUN, keep=None):
    model = Transformer(TINY, VOCAB, jax.random.key(0))
    return train(context(root), model, rows or CountingRows(), {}, ROWS, how, keep)[:2]


@pytest.fixture(scope="module", autouse=True)
def compiled_once():
    """Runs of the same settings share their compiled step."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "make_step", functools.cache(make_step))
        yield


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    return run(tmp_path_factory.mktemp("whole"))


def test_the_first_losses_are_the_golden_ones(uninterrupted):
    losses = [row["train/cross_entropy"] for row in uninterrupted[1]]
    np.testing.assert_allclose(losses, json.loads(GOLDEN.read_text()), atol=1e-4)


def test_a_resumed_run_equals_an_uninterrupted_one(uninterrupted, tmp_path):
    with pytest.raises(StageError, match="taken away"):
        run(tmp_path, CountingRows(dies_at=6))
    model, history = run(tmp_path)
    assert eqx.tree_equal(model, uninterrupted[0])
    assert [row["step"] for row in history] == list(range(1, 21))
    assert [row["attempt"] for row in history] == [1] * 4 + [2] * 16
    assert [row["mixture/stage"] for row in history] == [step // 5 for step in range(20)]
    for row, want in zip(history, uninterrupted[1], strict=True):
        assert row["train/loss"] == want["train/loss"]
        assert row["train/learning_rate"] == want["train/learning_rate"]


def test_snapshots_are_handed_over_at_their_steps_and_change_no_number(uninterrupted, tmp_path):
    kept = {}

    def keep(step, model, history):
        kept[step] = ([row["step"] for row in history], model_files.to_host(model))

    how = dataclasses.replace(RUN, snapshots=(3, 5))
    model, history = run(tmp_path, how=how, keep=keep)
    assert eqx.tree_equal(model, uninterrupted[0])
    for row, want in zip(history, uninterrupted[1], strict=True):
        assert row["train/loss"] == want["train/loss"]
    assert {step: steps for step, (steps, _) in kept.items()} == {3: [1, 2, 3], 5: [1, 2, 3, 4, 5]}
    assert not eqx.tree_equal(kept[3][1], kept[5][1])


def test_the_router_bias_moves_and_every_expert_is_used(uninterrupted):
    model, history = uninterrupted
    assert float(np.abs(router_bias(model)).max()) > 0
    assert history[-1]["moe/max_load_ratio"] < 2.0


def test_a_loss_that_is_not_finite_ends_the_run_as_diverged(tmp_path):
    wild = dataclasses.replace(RUN.optimizer, learning_rate=1e38)
    with pytest.raises(StageError) as caught:
        run(tmp_path, how=dataclasses.replace(RUN, optimizer=wild))
    assert caught.value.reason == "diverged"
    rows = read_metrics(os.path.join(context(tmp_path).work, "metrics.jsonl"))
    assert not np.isfinite(rows[-1]["train/loss"])


def test_a_checkpoint_that_cannot_be_written_fails_the_run(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError("no space left on device")

    monkeypatch.setattr(points, "publish", refuse)
    with pytest.raises(StageError, match="no space left on device"):
        run(tmp_path)


def test_progress_is_reported_at_every_step(tmp_path):
    ctx = context(tmp_path)
    how = dataclasses.replace(RUN, num_steps=3, steps_per_checkpoint=None)
    train(ctx, Transformer(TINY, VOCAB, jax.random.key(0)), CountingRows(), {}, ROWS, how)
    assert ctx.reports == [(1, 3), (2, 3), (3, 3)]
    last = read_metrics(os.path.join(ctx.work, "metrics.jsonl"))[-1]
    assert ctx.metrics[-1] == {name: last[name] for name in loop.LIVE}
    assert {"train/loss", "train/grad_norm", "moe/dropped", "tokens"} <= set(loop.LIVE)


def test_a_collapsed_layer_raises_an_alarm_although_the_others_are_balanced(tmp_path):
    """Experts of one layer that are pushed to stay, and nothing that balances them."""
    config = dataclasses.replace(TINY, num_experts=8, num_experts_per_token=2)
    model = Transformer(config, VOCAB, jax.random.key(0))
    pushed = with_router_bias(model, jax.numpy.zeros((2, 8)).at[1, 0].set(5.0))
    ctx = context(tmp_path)
    how = dataclasses.replace(
        RUN, num_steps=55, steps_per_checkpoint=None, balance=Balance(quantile=False)
    )
    _, history, _ = train(ctx, pushed, CountingRows(), {}, ROWS, how)
    assert history[-1]["moe/max_load_ratio"] == pytest.approx(4.0)
    alarms = [message for message in ctx.messages if message.startswith("alarm")]
    assert len(alarms) == 1
    assert "an expert took 4.0 fair shares" in alarms[0]
    assert "up to step 50" in alarms[0]
