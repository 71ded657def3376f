"""Turns weighted token caches into a pretrained model."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from marin_dagster.kinds import Checkpoint, TokenCache, Tokenizer
from marin_dagster.models.config import ModelConfig
from marin_dagster.recipe import Context, Summary
from marin_dagster.training.balance import Balance
from marin_dagster.training.extension import check_extended
from marin_dagster.training.optimizer import OptimizerConfig
from marin_dagster.training.phases import Phase, Phases, Stage, stage_starts
from marin_dagster.training.recovery import KeepEvery, Recovery, check_ranges, is_permanent
from marin_dagster.training.schedule import Extension
from marin_dagster.training.snapshot import Snapshot, check_snapshots, snapshot_of


@dataclass(frozen=True, kw_only=True)
class Pretrain(Checkpoint):
    """Trains a model from random weights on a mixture of token caches.

    A row has `model.seq_len` tokens, and a step `batch_size` of them; `phases` train on shorter and
    more rows for a while, at the same tokens per step, `stages` on another mixture. `validation`
    caches are measured in full every `steps_per_eval` steps and at the end. Resume points do not
    change the result, unless `recovery` goes back to one; nor do `snapshots`: steps whose model is
    published while the run goes on (`snapshot_of`). A run that `extends` another begins with that
    one's resume point, where the schedule, an `Extension`, says.
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
    phases: Phases | None = None  # None: rows of `model.seq_len` all the time
    stages: tuple[Stage, ...] = ()  # mixtures that follow `data`
    validation: tuple[TokenCache, ...] = ()
    z_loss_weight: float = 1e-4
    balance: Balance = field(default_factory=Balance)
    steps_per_eval: int | None = None
    steps_per_checkpoint: int | None = 100  # resume points, of which the last two are kept
    minutes_per_checkpoint: float | None = 15.0  # the same by the clock
    keep_checkpoints: tuple[KeepEvery, ...] = ()  # resume points that become part of the artifact
    recovery: Recovery | None = Recovery()  # noqa: RUF009 (a frozen value)
    snapshots: tuple[int, ...] = ()  # steps
    sample_prompts: tuple[str, ...] = ("",)  # continued in the summary; "" begins a text
    extends: "Pretrain | None" = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_run(self.num_steps, self.batch_size, self.steps_per_eval, self.steps_per_checkpoint)
        check_snapshots(self.snapshots, self.num_steps)
        check_ranges(self.keep_checkpoints)
        if self.minutes_per_checkpoint is not None and not self.minutes_per_checkpoint > 0:
            raise ValueError(
                f"minutes_per_checkpoint={self.minutes_per_checkpoint} of {self.address} is not "
                "positive; use None for none by the clock"
            )
        for data in (self.data, *(stage.data for stage in self.stages)):
            self._check_data(data)
        stage_starts(self.stages, self.num_steps)
        self._check_phases()
        if self.extends is not None:
            self._check_extension(self.extends)

    @property
    def makes(self) -> tuple[Snapshot, ...]:
        return tuple(snapshot_of(self, step) for step in self.snapshots)

    @property
    def sources(self) -> tuple[TokenCache, ...]:
        """Every cache that the run trains on, each once."""
        every = [*self.data, *(pair for stage in self.stages for pair in stage.data)]
        return tuple({cache.address: cache for cache, _ in every}.values())

    @property
    def course(self) -> tuple[tuple[int, Phase], ...]:
        """The phases of the run and the steps at which they begin."""
        if self.phases is None:
            whole = Phase(seq_len=self.model.seq_len, batch_size=self.batch_size, from_step=0)
            return ((0, whole),)
        return tuple(zip(self.phases.starts(self.num_steps), self.phases.phases, strict=True))

    @property
    def first_step(self) -> int:
        """Steps that the run which this one extends has done."""
        schedule = self.optimizer.schedule
        return schedule.at if self.extends and isinstance(schedule, Extension) else 0

    @property
    def tokens(self) -> int:
        """Tokens that the run reads."""
        return (self.num_steps - self.first_step) * self.batch_size * self.model.seq_len

    def cost(self, sizes: Mapping[str, int]) -> dict[str, float]:
        vocab_size = getattr(self.tokenizer, "vocab_size", 0)  # an imported one does not say
        flops, course = 0.0, self.course
        ends = [*(step for step, _ in course[1:]), self.num_steps]
        for (step, phase), end in zip(course, ends, strict=True):
            model = dataclasses.replace(self.model, seq_len=phase.seq_len)
            tokens = max(0, end - max(step, self.first_step)) * phase.tokens_per_step
            flops += model.flops_per_token(vocab_size) * tokens
        return {"tokens": float(self.tokens), "flops": flops, **super().cost(sizes)}

    def memory(self) -> int:
        """Weights, gradients and two moments in single precision; activations come on top."""
        vocab_size = getattr(self.tokenizer, "vocab_size", 0)
        return 4 * 4 * self.model.parameters(vocab_size).total

    def build(self, ctx: Context) -> Summary:
        from marin_dagster.training.pretrain_build import build_pretrained

        return build_pretrained(self, ctx)

    def _check_data(self, data: tuple[tuple[TokenCache, float], ...]) -> None:
        if not data:
            raise ValueError(
                f"data=() of {self.address} is empty; give at least one (token cache, weight)"
            )
        addresses = [cache.address for cache, _ in data]
        if len(set(addresses)) < len(addresses):
            raise ValueError(
                f"data of {self.address} names a cache twice: {', '.join(addresses)}; give it "
                "once, with the sum of its weights"
            )
        for cache, weight in data:
            if not weight > 0:
                raise ValueError(
                    f"weight={weight} of {cache.address} is not positive; leave the cache out, or "
                    "give it a share of the rows"
                )

    def _check_extension(self, base: "Pretrain") -> None:
        try:
            at = check_extended(self.optimizer, base.optimizer, base.num_steps, self.num_steps).at
        except ValueError as error:
            raise ValueError(f"{self.address} extends {base.address}: {error}") from error
        if at <= base.first_step or not is_permanent(at, base.keep_checkpoints):
            raise ValueError(
                f"{self.address} extends {base.address} from step {at}, whose resume point that "
                f"run does not keep (keep_checkpoints={base.keep_checkpoints}); choose a step that "
                "it keeps, or let it keep that one, with KeepEvery"
            )
        for name in ("tokenizer", "model", "seed", "batch_size"):
            ours, theirs = getattr(self, name), getattr(base, name)
            if ours != theirs:
                raise ValueError(
                    f"{name} of {self.address} is {ours}, and {theirs} in {base.address}, which it "
                    "extends; a run goes on as the same run"
                )
        if self.snapshots and self.snapshots[0] <= at:
            raise ValueError(
                f"snapshots={self.snapshots} of {self.address} begin at or before step {at}, from "
                f"which it goes on; those are for {base.address} to make"
            )

    def _check_phases(self) -> None:
        if self.phases is None:
            return
        self.phases.starts(self.num_steps)
        if self.phases.longest != self.model.seq_len:
            raise ValueError(
                f"model.seq_len={self.model.seq_len} of {self.address} is not the longest context "
                f"of its phases, {self.phases.longest}; make them equal"
            )
        rows = self.phases.tokens_per_step // self.model.seq_len
        if rows * self.model.seq_len != self.phases.tokens_per_step or rows != self.batch_size:
            raise ValueError(
                f"batch_size={self.batch_size} of {self.address}, in rows of the longest context, "
                f"is not the {self.phases.tokens_per_step} tokens per step of its phases; they are "
                f"{self.phases.tokens_per_step / self.model.seq_len:g} such rows"
            )


def check_run(num_steps: int, batch_size: int, *intervals: int | None) -> None:
    """Raises ValueError for a run of no steps or rows, and for intervals below one step."""
    for name, value in (("num_steps", num_steps), ("batch_size", batch_size)):
        if value < 1:
            raise ValueError(f"{name}={value} is below 1; nothing would be trained, raise it")
    for name, value in zip(("steps_per_eval", "steps_per_checkpoint"), intervals, strict=True):
        if value is not None and value < 1:
            raise ValueError(f"{name}={value} is below 1; use None for 'not during the run'")
