"""Turns a pretrained model and tokenized conversations into a model that answers."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from marin_dagster.kinds import Checkpoint, TokenCache, Tokenizer
from marin_dagster.recipe import Context, Summary
from marin_dagster.training.optimizer import OptimizerConfig
from marin_dagster.training.pretrain import check_run


@dataclass(frozen=True, kw_only=True)
class SupervisedFineTune(Checkpoint):
    """Trains a checkpoint further on conversations, with loss on what the assistant writes.

    Rows are as long as the checkpoint's. Conversations in a row do not see each other.
    """

    stage: ClassVar[str] = "sft"
    accelerated: ClassVar[bool] = True

    checkpoint: Checkpoint
    tokenizer: Tokenizer
    conversations: TokenCache  # with loss weights
    optimizer: OptimizerConfig
    num_steps: int
    batch_size: int  # rows
    seed: int
    validation: TokenCache | None = None
    z_loss_weight: float = 0.0
    steps_per_eval: int | None = None
    steps_per_checkpoint: int | None = 100
    sample_questions: tuple[str, ...] = ()  # asked in the summary

    def __post_init__(self) -> None:
        super().__post_init__()
        check_run(self.num_steps, self.batch_size, self.steps_per_eval, self.steps_per_checkpoint)

    def cost(self, sizes: Mapping[str, int]) -> dict[str, float]:
        model = getattr(self.checkpoint, "model", None)
        if model is None:
            return super().cost(sizes)
        tokens = self.num_steps * self.batch_size * model.seq_len
        vocab_size = getattr(self.tokenizer, "vocab_size", 0)
        flops = model.flops_per_token(vocab_size) * tokens
        return {"tokens": float(tokens), "flops": flops, **super().cost(sizes)}

    def build(self, ctx: Context) -> Summary:
        from marin_dagster.posttraining.sft_build import build_fine_tuned

        return build_fine_tuned(self, ctx)
