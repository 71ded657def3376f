"""Turns weighted token caches into a pretrained model."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from marin_dagster.kinds import Checkpoint, TokenCache, Tokenizer
from marin_dagster.models.config import ModelConfig
from marin_dagster.recipe import Context, Summary
from marin_dagster.training.balance import Balance
from marin_dagster.training.optimizer import OptimizerConfig
from marin_dagster.training.snapshot import Snapshot, check_snapshots, snapshot_of


@dataclass(frozen=True, kw_only=True)
class Pretrain(Checkpoint):
    """Trains a model from random weights on a mixture of token caches.

    A row has `model.seq_len` tokens. `validation` caches are measured in full every
    `steps_per_eval` steps and at the end. Resume points do not change the result, nor do
    `snapshots`: steps whose model is published while the run goes on (`snapshot_of`).
    """

    stage: ClassVar[str] = "checkpoints"
    accelerated: ClassVar[bool] = True

    tokenizer: Tokenizer
    data: tuple[tuple[TokenCache, float], ...]  # caches and their weights
    model: ModelConfig
    optimizer: OptimizerConfig
    num_steps: int
    batch_size: int  # rows
    seed: int
    validation: tuple[TokenCache, ...] = ()
    z_loss_weight: float = 1e-4
    balance: Balance = Balance()
    steps_per_eval: int | None = None
    steps_per_checkpoint: int | None = 100
    snapshots: tuple[int, ...] = ()  # steps
    sample_prompts: tuple[str, ...] = ("",)  # continued in the summary; "" begins a text

    def __post_init__(self) -> None:
        super().__post_init__()
        check_run(self.num_steps, self.batch_size, self.steps_per_eval, self.steps_per_checkpoint)
        check_snapshots(self.snapshots, self.num_steps)
        if not self.data:
            raise ValueError(
                f"data=() of {self.address} is empty; give at least one (token cache, weight)"
            )
        addresses = [cache.address for cache, _ in self.data]
        if len(set(addresses)) < len(addresses):
            raise ValueError(
                f"data of {self.address} names a cache twice: {', '.join(addresses)}; give it "
                "once, with the sum of its weights"
            )
        for cache, weight in self.data:
            if not weight > 0:
                raise ValueError(
                    f"weight={weight} of {cache.address} is not positive; leave the cache out, or "
                    "give it a share of the rows"
                )

    @property
    def makes(self) -> tuple[Snapshot, ...]:
        return tuple(snapshot_of(self, step) for step in self.snapshots)

    @property
    def tokens(self) -> int:
        """Tokens that the run reads."""
        return self.num_steps * self.batch_size * self.model.seq_len

    def cost(self, sizes: Mapping[str, int]) -> dict[str, float]:
        vocab_size = getattr(self.tokenizer, "vocab_size", 0)  # an imported one does not say
        return {
            "tokens": float(self.tokens),
            "flops": self.model.flops_per_token(vocab_size) * self.tokens,
            **super().cost(sizes),
        }

    def memory(self) -> int:
        """Weights, gradients and two moments in single precision; activations come on top."""
        vocab_size = getattr(self.tokenizer, "vocab_size", 0)
        return 4 * 4 * self.model.parameters(vocab_size).total

    def build(self, ctx: Context) -> Summary:
        from marin_dagster.training.pretrain_build import build_pretrained

        return build_pretrained(self, ctx)


def check_run(num_steps: int, batch_size: int, *intervals: int | None) -> None:
    """Raises ValueError for a run of no steps or rows, and for intervals below one step."""
    for name, value in (("num_steps", num_steps), ("batch_size", batch_size)):
        if value < 1:
            raise ValueError(f"{name}={value} is below 1; nothing would be trained, raise it")
    for name, value in zip(("steps_per_eval", "steps_per_checkpoint"), intervals, strict=True):
        if value is not None and value < 1:
            raise ValueError(f"{name}={value} is below 1; use None for 'not during the run'")
