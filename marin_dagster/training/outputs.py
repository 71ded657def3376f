"""Turns the model of a run into files: of the checkpoint at its end, of snapshots on its way."""

import os
import shutil
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from marin_dagster.data.tokenizer import TextTokenizer
from marin_dagster.models.language_model import LanguageModel
from marin_dagster.recipe import Context, Summary
from marin_dagster.training.metrics import Row, read_metrics
from marin_dagster.training.model_files import save_model
from marin_dagster.training.snapshot import snapshot_of
from marin_dagster.training.summary import run_numbers, run_plots

if TYPE_CHECKING:
    from marin_dagster.training.pretrain import Pretrain

METRICS = "metrics.jsonl"


def write_checkpoint(
    ctx: Context, folder: str, model: LanguageModel, tokenizer: TextTokenizer, **facts: Any
) -> None:
    """Writes the model, its configuration and the run's metrics so far into a folder."""
    extra = {
        "tokenizer": tokenizer.digest,
        "bos_id": tokenizer.bos_id,
        "eos_id": tokenizer.eos_id,
        "pad_id": tokenizer.pad_id,
        **facts,
    }
    save_model(model, folder, extra)
    shutil.copyfile(os.path.join(ctx.work, METRICS), os.path.join(folder, METRICS))


class Snapshots:
    """Writes and publishes the snapshots of a run.

    A draft is a folder of `ctx.work` that appears by one rename and is gone once it is published.
    """

    def __init__(self, recipe: "Pretrain", ctx: Context, tokenizer: TextTokenizer):
        self.recipe, self.ctx, self.tokenizer = recipe, ctx, tokenizer
        self.folder = os.path.join(ctx.work, "snapshots")

    def publish_left_over(self) -> None:
        """Publishes the drafts that a killed attempt had written and not published.

        The run may go on from a later step and never come by again.
        """
        for step in self.recipe.snapshots:
            shutil.rmtree(self._draft(step, half=True), ignore_errors=True)
            draft = self._draft(step)
            if os.path.isdir(draft):
                self._publish(step, read_metrics(os.path.join(draft, METRICS)))

    def keep(self, step: int, model: LanguageModel, history: Sequence[Row]) -> None:
        """Writes the model after `step` steps, and publishes it."""
        half, draft = self._draft(step, half=True), self._draft(step)
        if os.path.isdir(draft):  # left over, and on its way already
            return
        os.makedirs(half)
        write_checkpoint(self.ctx, half, model, self.tokenizer, steps=step)
        os.rename(half, draft)
        self._publish(step, history)

    def _publish(self, step: int, history: Sequence[Row]) -> None:
        vocab_size = self.tokenizer.vocab_size
        summary = Summary(
            numbers={
                **run_numbers(history, self.recipe.model, vocab_size),
                "vocab_size": vocab_size,
            },
            plots=run_plots(history, {}),
        )
        self.ctx.publish(snapshot_of(self.recipe, step), self._draft(step), summary)

    def _draft(self, step: int, half: bool = False) -> str:
        return os.path.join(self.folder, f"{'.' if half else ''}step-{step:08d}")
