"""Turns a model and batches by step into a trained model, resuming where an attempt stopped.

Pretraining and fine-tuning are the same loop. What it does about trouble is a value of the recipe
(`Recovery`); what it did is told by the events among the metrics.
"""

import contextlib
import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh

from marin_dagster.data.mixture import Rows
from marin_dagster.failure import STALLED_EXIT
from marin_dagster.models.language_model import LanguageModel
from marin_dagster.models.peaks import peak_flops
from marin_dagster.recipe import Context, StageError
from marin_dagster.termination import termination
from marin_dagster.training.alarms import Alarms
from marin_dagster.training.balance import Balance
from marin_dagster.training.checkpoint import Origin, Restored, Saver
from marin_dagster.training.evaluate import evaluate
from marin_dagster.training.extension import check_extension, describe
from marin_dagster.training.guard import empty_guard
from marin_dagster.training.mesh import global_batch, make_mesh, on_mesh, shard_state
from marin_dagster.training.metrics import Row, read_metrics
from marin_dagster.training.optimizer import OptimizerConfig
from marin_dagster.training.preemption import Preemption
from marin_dagster.training.prefetch import Batches, Prefetch
from marin_dagster.training.preflight import check_memory
from marin_dagster.training.recovery import KeepEvery, Recovery, Standing, is_permanent
from marin_dagster.training.router_metrics import to_numbers
from marin_dagster.training.step import State, initial_state, make_step
from marin_dagster.training.throughput import Meter
from marin_dagster.training.timeline import Timeline
from marin_dagster.training.watchdog import Watchdog, dump_stacks

Keep = Callable[[int, LanguageModel, list[Row]], None]
Position = Mapping[str, Any]  # where the data stand and what they are, as JSON values

LIVE = (  # what one follows while it trains; the rest is in metrics.jsonl
    "train/loss",
    "train/grad_norm",
    "throughput/tokens_per_second",
    "moe/dropped",
    "moe/max_load_ratio",
    "tokens",
)
LOAD_STEPS = 10  # how often the load of every expert is logged
RESUME = "resume"  # the folder of resume points
AGREED_STEPS = 16  # how often several processes ask the first one's clock


@dataclass(frozen=True, kw_only=True)
class Run:
    """What the loop needs to know beside the model and the data."""

    optimizer: OptimizerConfig
    num_steps: int
    z_loss_weight: float = 0.0
    balance: Balance = field(default_factory=Balance)
    steps_per_eval: int | None = None  # None: at the end only
    steps_per_checkpoint: int | None = None  # temporary resume points; None: not by steps
    minutes_per_checkpoint: float | None = None  # the same by the clock
    keep_checkpoints: tuple[KeepEvery, ...] = ()  # permanent resume points
    snapshots: tuple[int, ...] = ()  # steps whose model is handed to `keep`
    recovery: Recovery | None = None  # None: the first bad step ends the run
    origin: Origin | None = None  # None: it begins with the model that is given


def train(
    ctx: Context,
    model: LanguageModel,
    batches: Batches,
    validation: Mapping[str, Rows],
    batch_size: int,
    run: Run,
    keep: Keep | None = None,
    position: Callable[[int], Position] | None = None,
    check: Callable[[Position], None] | None = None,
) -> tuple[LanguageModel, list[Row], str | None]:
    """Trains from the newest resume point of any root, or from `model`.

    `keep` gets the step, the model and the history so far at each of `run.snapshots`; it may be
    asked for the last one again after a resume. `position` tells where the data stand before a
    step; a resume hands what was saved of it to `check`, which refuses data that have changed.
    Writes `metrics.jsonl` into `ctx.work`; returns the model, the history, each step once, and the
    address of the run's page at Weights & Biases, if it has one.

    Raises StageError: "diverged" when `run.recovery` has no way on, "bad_input" for a resume point
    of other data or another model, "error" when a resume point could not be written.
    """
    timeline = Timeline(ctx)
    devices = ctx.placement.devices
    mesh = make_mesh(devices.mesh)
    try:
        with (
            on_mesh(mesh, devices),
            Saver(resume_roots(ctx), ctx.recipe.fingerprint, ctx.log) as saver,
        ):
            loop = _Loop(ctx, run, batches, timeline, saver, mesh)
            loop.validation, loop.batch_size, loop.keep = validation, batch_size, keep
            loop.position, loop.check = position, check
            loop.resume(model)
            loop.run_to_the_end()
    finally:
        timeline.close()
    return loop.state.model, read_metrics(timeline.path), timeline.url


def resume_roots(ctx: Context) -> list[str]:
    """The folders of a run's resume points, that of permanent ones last."""
    roots = ctx.placement.checkpoint_roots
    placed = [os.path.join(root, ctx.recipe.stage, ctx.recipe.key) for root in roots]
    return [os.path.join(ctx.work, RESUME), *placed]


class _Loop:
    """A run in its attempt. `state`, `step`, `loss` and `standing` change together, when busy."""

    state: State
    validation: Mapping[str, Rows]
    batch_size: int
    keep: Keep | None
    position: Callable[[int], Position] | None
    check: Callable[[Position], None] | None

    def __init__(
        self,
        ctx: Context,
        run: Run,
        batches: Batches,
        timeline: Timeline,
        saver: Saver,
        mesh: Mesh | None,
    ):
        self.ctx, self.run, self.batches, self.mesh = ctx, run, batches, mesh
        self.timeline, self.saver = timeline, saver
        self.step, self.loss, self.standing = 0, float("nan"), Standing()
        self.step_fn = make_step(
            run.optimizer,
            run.num_steps,
            run.z_loss_weight,
            run.balance,
            recovery=run.recovery,
            micro_batches=ctx.placement.devices.micro_batches,
        )
        self.watchdog = Watchdog(self._stalled)
        self.preemption = Preemption(self, ctx.placement.grace_seconds)
        self.compiled: set[tuple[int, ...]] = set()  # shapes of batches
        self.saved_at = time.monotonic()
        self.resumed_at: int | None = None
        self.meter = Meter(peak_flops([device.device_kind for device in jax.devices()]))
        self.alarms = Alarms(self.said)

    def resume(self, model: LanguageModel) -> None:
        """Makes the first state of this attempt."""
        run = self.run
        state = initial_state(model, run.optimizer, run.num_steps, run.recovery)
        self.state = shard_state(state, self.mesh)
        found = self.saver.restore(self.state)
        origin = run.origin if found is None else None
        if origin is not None:
            found = self.saver.restore(self.state, origin=origin)
        self.timeline.begin(self.saver.attempt)
        attempt, start = self.timeline.attempt, 0 if found is None else found.step
        self.saver.branch(attempt, start)
        self.timeline.event(start, "attempt", **_devices())
        if found is None:
            return
        said = self._take(found)
        if origin is not None:
            self.standing = replace(self.standing, branch=0)  # attempts are counted anew
            self.timeline.event(start, "extend", run=origin.address, saved_loss=self.loss, how=said)
            return
        lost = max(0, self.timeline.reached - self.step)
        self.resumed_at = self.step
        logged = self.timeline.logged.get(self.step, {})
        self.timeline.event(
            self.step,
            "resume",
            from_attempt=found.attempt,
            lost_steps=lost,
            saved_loss=self.loss,
            logged_loss=logged.get("train/loss"),
        )
        again = f"; logged steps to be done again: {lost}" if lost else ""
        self.ctx.log(f"attempt {attempt} goes on after step {self.step}{again}")

    def run_to_the_end(self) -> None:
        with self.watchdog, termination.calls(self.preemption.handle):
            if self.step:
                self._look(self.step)  # the last attempt may have ended before it did
            while not self._steps():
                self._roll_back()

    def _steps(self) -> bool:
        """Goes on to the last step; False when it has to go back first."""
        offset = self.standing.data_offset
        wanted = range(self.step + offset, self.run.num_steps + offset)
        with Prefetch(self.batches, wanted) as source:
            while self.step < self.run.num_steps:
                with self.watchdog.during("the next batch"), self.meter.spent("input"):
                    batch = source.next()
                self._prepare(batch)
                self._advance(batch)
                self.saver.check()
                if self.standing.skips and self._is_hopeless():
                    return False
                self._look(self.step)
                self._save_if_due()
                self.preemption.agree()
        return True

    def _prepare(self, batch: Mapping[str, Any]) -> None:
        """Before the first step with batches of a shape: it compiles, and its losses may leap."""
        shape, before = list(batch["tokens"].shape), self.standing.batch_shape
        if before not in (None, shape):
            self.timeline.event(self.step, "phase", batch_shape=shape, before=before)
        with self.preemption.busy():
            self.standing.batch_shape = shape
            if before not in (None, shape) and self.run.recovery is not None:
                state = self.state._replace(guard=empty_guard(self.run.recovery))
                self.state = shard_state(state, self.mesh)
        if tuple(shape) not in self.compiled and self.compiled and self._saves():
            self.save()  # a signal while the program is compiled finds everything on disk

    def _advance(self, batch: Mapping[str, Any]) -> None:
        """Does one step, and logs it before anybody can save its state."""
        shape, done = batch["tokens"].shape, self.step + 1
        watch = self.watchdog.step(done) if shape in self.compiled else None
        with self.preemption.busy():
            with watch or self.watchdog.during(f"compiling step {done}"), self.meter.spent("step"):
                rows = global_batch(batch, self.mesh)
                if shape not in self.compiled:
                    self._check_memory(rows)
                self.state, arrays = self.step_fn(self.state, rows)
                metrics = to_numbers(arrays, with_load=done % LOAD_STEPS == 0)
            tokens = int(batch["tokens"].size)
            model = self.state.model
            flops = tokens * model.config.flops_per_token(model.vocab_size, shape[1])
            metrics |= {
                "tokens": done * tokens,
                "seconds": round(time.time(), 3),  # wall clock, since the epoch
                **self.meter.metrics(tokens, flops),
                **self.batches.metrics(self.step + self.standing.data_offset),
            }
            self.step, self.loss = done, metrics["train/loss"]
            self.standing.note(done, _is_bad(metrics))
            self.timeline.row(done, metrics)
        self.compiled.add(shape)
        self._report(metrics)

    def _check_memory(self, rows: Mapping[str, Any]) -> None:
        where, devices = self.ctx.recipe.address, self.ctx.placement.devices
        check_memory(self.step_fn, self.state, rows, devices, self.mesh, self.ctx.log, where)

    def _report(self, metrics: Mapping[str, float]) -> None:
        done = self.step
        if self.resumed_at == done - 1:
            self.timeline.compare(done, self.loss, self.standing.branch)
        if self.standing.skips:
            numbers = {name: metrics[f"train/{name}"] for name in ("loss", "grad_norm")}
            self.timeline.event(done, "skip", in_a_row=self.standing.skips, **numbers)
        live = {key: metrics[key] for key in LIVE if key in metrics}
        self.ctx.progress(done, self.run.num_steps, "steps", **live)
        self.alarms.look(done, metrics)

    def _look(self, step: int) -> None:
        """Evaluates the model and hands it over, where that is due after this step."""
        due = self.run.steps_per_eval is not None and step % self.run.steps_per_eval == 0
        if (due or step == self.run.num_steps) and not self._evaluated(step):
            began = time.perf_counter()
            with self.watchdog.during("the evaluation"), self.meter.spent("eval"):
                metrics = evaluate(self.state.model, self.validation, self.batch_size)
            if metrics:
                self.timeline.row(step, metrics)
                seconds = round(time.perf_counter() - began, 3)
                self.timeline.event(step, "evaluation", duration_seconds=seconds)
        if self.keep is not None and step in self.run.snapshots:
            with self.watchdog.during("publishing a snapshot"):
                self.keep(step, self.state.model, read_metrics(self.timeline.path))

    def _evaluated(self, step: int) -> bool:
        """Whether an earlier attempt has done so, on this very state."""
        logged = self.timeline.logged.get(step, {})
        return self.resumed_at == step and any(name.startswith("eval/") for name in logged)

    def _saves(self) -> bool:
        run = self.run
        return bool(run.steps_per_checkpoint or run.minutes_per_checkpoint or run.keep_checkpoints)

    def _save_if_due(self) -> None:
        run, step = self.run, self.step
        permanent = is_permanent(step, run.keep_checkpoints)
        by_steps = run.steps_per_checkpoint is not None and step % run.steps_per_checkpoint == 0
        by_clock = run.minutes_per_checkpoint is not None and _agreed(
            step, time.monotonic() - self.saved_at > 60 * run.minutes_per_checkpoint
        )
        if permanent or ((by_steps or by_clock) and not self.standing.skips):
            self.save(permanent=permanent)

    def save(self, permanent: bool = False) -> None:
        """Starts to write a resume point."""
        began = time.perf_counter()
        with self.watchdog.during("saving a checkpoint"), self.meter.spent("checkpoint"):
            self.saver.save(self.step, self.state, self._facts(), permanent=permanent)
        self.saved_at = time.monotonic()
        blocked = round(time.perf_counter() - began, 4)
        self.timeline.event(self.step, "checkpoint", permanent=permanent, blocked_seconds=blocked)

    def _facts(self) -> dict[str, Any]:
        """What a resume needs beside the arrays."""
        data_step = self.step + self.standing.data_offset
        return {
            "standing": asdict(self.standing),
            "loss": self.loss,
            "schedule": describe(self.run.optimizer, self.run.num_steps),
            "position": None if self.position is None else dict(self.position(data_step)),
        }

    def _take(self, found: Restored) -> str:
        """Makes a state that was found this run's; says how the learning rate goes on."""
        run = self.run
        said = check_extension(found.facts["schedule"], run.optimizer, run.num_steps, found.step)
        self.ctx.log(said)
        if self.check is not None and found.facts["position"] is not None:
            self.check(found.facts["position"])
        self.state, self.step, self.loss = found.state, found.step, found.facts["loss"]
        self.standing = Standing(**found.facts["standing"])
        return said

    def _is_hopeless(self) -> bool:
        """Whether to go back. Raises StageError("diverged") when the policy has no way on."""
        policy, standing = self.run.recovery, self.standing
        if policy is not None and standing.skips < policy.max_skips:
            return False
        if policy is None or standing.rollbacks >= policy.max_rollbacks:
            raise self._diverged(f"{standing.rollbacks} rollbacks did not help")
        return True

    def _diverged(self, why: str) -> StageError:
        row = self.timeline.last
        numbers = {name: row[f"train/{name}"] for name in ("loss", "grad_norm")}
        counts = {"skips": self.standing.skips, "rollbacks": self.standing.rollbacks}
        said = ", ".join(f"train/{name}={value:.6g}" for name, value in numbers.items())
        return StageError(
            "diverged",
            f"{said} at step {self.step} of {self.ctx.recipe.address}, the bad step number "
            f"{self.standing.skips} in a row; {why}; lower the learning rate or warm up longer",
            {"step": self.step, **numbers, **counts},
        )

    def _roll_back(self) -> None:
        reached, standing = self.step, self.standing
        found = self.saver.restore(self.state, before=standing.first_skip)
        if found is None:
            raise self._diverged(f"no resume point is from before step {standing.first_skip}")
        attempt = self.timeline.branch()
        with self.preemption.busy():
            self.state, self.step, self.loss = found.state, found.step, found.facts["loss"]
            self.standing = standing.went_back(reached, found.step, attempt)
            self.standing.batch_shape = found.facts["standing"]["batch_shape"]
            self.saver.branch(attempt, found.step)
        self.timeline.event(
            self.step,
            "rollback",
            reached=reached,
            data_offset=self.standing.data_offset,
            rollbacks=self.standing.rollbacks,
        )
        self.ctx.log(
            f"rolled back from step {reached} to {self.step} after {standing.skips} bad steps in a "
            f"row; the data of steps {self.step + 1} to {reached} is passed over"
        )
        self.save_now()  # the next attempt must not return to what was left behind

    def settle(self) -> int:
        with contextlib.suppress(StageError):  # the caller asks what is durable
            self.saver.wait()
        return self.saver.last_durable or 0

    def save_now(self) -> None:
        self.save()
        self.saver.wait()

    def said(self, event: str, message: str, **facts: int) -> None:
        self.timeline.event(self.step, event, message=message, **facts)
        self.ctx.log(message)

    def _stalled(self, message: str) -> None:
        dump_stacks()
        text = f"{message}; the stacks of all threads are in the log of the worker"
        self.said("hang", text)
        if termination.listening:
            evidence = {"step": self.step}
            termination.end(STALLED_EXIT, "hang", text, evidence)


def _is_bad(metrics: Mapping[str, float]) -> bool:
    numbers = (metrics["train/loss"], metrics["train/grad_norm"])
    return bool(metrics["train/skipped"]) or not all(map(math.isfinite, numbers))


def _agreed(step: int, due: bool) -> bool:
    """What the first process says; asked now and then only, for all wait for the answer."""
    if jax.process_count() == 1:
        return due
    if step % AGREED_STEPS:
        return False
    return bool(multihost_utils.broadcast_one_to_all(np.array(due)))


def _devices() -> dict[str, Any]:
    return {"devices": jax.device_count(), "processes": jax.process_count()}
