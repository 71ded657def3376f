"""Turns a checkpoint into scores: lm-evaluation-harness tasks, and loss on held-out tokens."""

from dataclasses import dataclass
from typing import ClassVar

from marin_dagster.kinds import Checkpoint, EvalReport, Tasks, TokenCache, Tokenizer
from marin_dagster.recipe import Context, Summary


@dataclass(frozen=True, kw_only=True)
class Evaluate(EvalReport):
    """Scores a checkpoint on every task of its `tasks`, or on those named, and on `heldout` caches.

    `limit` takes a random subset of each task's examples, chosen by `seed`, whose ids are stored.
    """

    stage: ClassVar[str] = "evals"
    accelerated: ClassVar[bool] = True

    checkpoint: Checkpoint
    tokenizer: Tokenizer
    tasks: tuple[Tasks, ...] = ()
    heldout: tuple[TokenCache, ...] = ()
    task_names: tuple[str, ...] = ()  # none: all
    limit: int | None = None  # examples per task
    num_fewshot: int | None = None  # None: as each task says
    chat: bool | None = None  # ask in the chat format; None: if the checkpoint was trained in it
    seed: int = 0
    batch_tokens: int = 8_192  # tokens of a batch, padding included; scores do not depend on it

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.tasks and not self.heldout:
            raise ValueError(
                f"tasks=() and heldout=() of {self.address} leave nothing to measure; "
                "give at least one of them"
            )
        for name, value in (("limit", self.limit), ("batch_tokens", self.batch_tokens)):
            if value is not None and value < 1:
                raise ValueError(f"{name}={value} of {self.address} is below 1; raise it")
        if self.task_names and not self.tasks:
            raise ValueError(
                f"task_names={self.task_names} of {self.address} has no tasks artifact to find "
                "them in; add one to tasks"
            )

    def build(self, ctx: Context) -> Summary:
        from marin_dagster.evaluation.evaluate_build import build_report

        return build_report(self, ctx)
