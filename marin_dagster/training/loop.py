"""Turns a model and batches by step into a trained model, resuming where an attempt stopped.

Pretraining and fine-tuning are the same loop. It stops a run that diverges or whose checkpoints
cannot be written.
"""

import math
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from marin_dagster.data.mixture import Batch, Rows
from marin_dagster.models.language_model import LanguageModel
from marin_dagster.recipe import Context, StageError
from marin_dagster.training.balance import Balance
from marin_dagster.training.checkpoint import Saver, restore
from marin_dagster.training.evaluate import evaluate
from marin_dagster.training.mesh import global_batch, make_mesh, on_mesh, shard_state
from marin_dagster.training.metrics import MetricsLog, Row, read_metrics
from marin_dagster.training.optimizer import OptimizerConfig
from marin_dagster.training.step import State, initial_state, make_step
from marin_dagster.training.tracker import WANDB_FOLDER, WandbMirror

Keep = Callable[[int, LanguageModel, list[Row]], None]

PREFETCHED = 2  # batches ready before they are asked for
LIVE = (  # what one follows while it trains; the rest is in metrics.jsonl
    "train/loss",
    "train/grad_norm",
    "throughput/tokens_per_second",
    "moe/dropped",
    "moe/max_load_ratio",
    "tokens",
)
UNEVEN, UNEVEN_STEPS = 3.0, 50  # an expert at three fair shares for fifty steps is an alarm


@runtime_checkable
class Batches(Protocol):
    """Batches by step number: a pure function, so that a resume needs no state."""

    def batch(self, step: int) -> Batch: ...


@dataclass(frozen=True, kw_only=True)
class Run:
    """What the loop needs to know beside the model and the data."""

    optimizer: OptimizerConfig
    num_steps: int
    z_loss_weight: float = 0.0
    balance: Balance = Balance()
    steps_per_eval: int | None = None  # None: at the end only
    steps_per_checkpoint: int | None = None  # resume points; None: none
    snapshots: tuple[int, ...] = ()  # steps whose model is handed to `keep`


def train(
    ctx: Context,
    model: LanguageModel,
    batches: Batches,
    validation: Mapping[str, Rows],
    batch_size: int,
    run: Run,
    keep: Keep | None = None,
) -> tuple[LanguageModel, list[Row], str | None]:
    """Trains from the newest resume point in `ctx.work`, or from `model`.

    `keep` gets the step, the model and the history so far at each of `run.snapshots`, before a
    resume point of that step or a later one is written. Writes `metrics.jsonl` into `ctx.work`;
    returns the model, the history, each step once, and the address of the run's page at Weights &
    Biases, if it has one.
    Raises StageError("diverged") for a loss that is not finite, and StageError("error") when a
    resume point could not be written.
    """
    log = MetricsLog(os.path.join(ctx.work, "metrics.jsonl"))
    folder = os.path.join(ctx.work, "resume")
    state = initial_state(model, run.optimizer, run.num_steps)
    first, model, optimizer = restore(folder, state.model, state.optimizer, ctx.log)
    devices = ctx.placement.devices
    mesh = make_mesh(devices.mesh)
    state = shard_state(State(model, optimizer, state.step + first), mesh)
    if first:
        ctx.log(f"attempt {log.attempt} goes on after step {first}")
    mirror = WandbMirror(
        ctx.placement.wandb_mode,
        os.path.join(ctx.out, WANDB_FOLDER),  # beside the files, not among them: it names this host
        ctx.recipe.address,
        log.attempt,
        ctx.recipe.payload,
        ctx.log,
    )
    loop = _Loop(ctx, run, validation, batch_size, log, mirror, keep, mesh)
    try:
        with (
            on_mesh(mesh, devices),
            Saver(folder) as saver,
            _Prefetch(batches, first, run.num_steps) as source,
        ):
            state = loop.steps(state, source, saver, first)
    finally:
        log.close()
        mirror.finish()
    return state.model, read_metrics(log.path), mirror.url


class _Loop:
    """The parts of a run that every step touches."""

    def __init__(
        self,
        ctx: Context,
        run: Run,
        validation: Mapping[str, Rows],
        batch_size: int,
        log: MetricsLog,
        mirror: WandbMirror,
        keep: Keep | None,
        mesh: Any,
    ):
        self.ctx, self.run, self.log, self.mirror = ctx, run, log, mirror
        self.validation, self.batch_size, self.keep = validation, batch_size, keep
        self.mesh = mesh
        self.uneven = 0

    def steps(self, state: State, source: "_Prefetch", saver: Saver, first: int) -> State:
        devices = self.ctx.placement.devices
        step_fn = make_step(
            self.run.optimizer,
            self.run.num_steps,
            self.run.z_loss_weight,
            self.run.balance,
            devices.micro_batches,
        )
        for step in range(first, self.run.num_steps):
            began = time.perf_counter()
            batch = source.next()
            waited = time.perf_counter() - began
            state, arrays = step_fn(state, global_batch(batch, self.mesh))
            metrics = {name: float(value) for name, value in arrays.items()}
            seconds = time.perf_counter() - began
            done = step + 1
            tokens = int(batch["tokens"].size)
            metrics |= {
                "tokens": done * tokens,
                "seconds": round(time.time(), 3),  # wall clock, since the epoch
                "throughput/step_seconds": seconds,
                "throughput/tokens_per_second": tokens / seconds,
                "throughput/input_wait_fraction": waited / seconds,
            }
            self._refuse_if_diverged(done, metrics)
            if self._due(done, self.run.steps_per_eval) or done == self.run.num_steps:
                metrics |= evaluate(state.model, self.validation, self.batch_size)
            self._report(done, metrics)
            saver.check()
            if self.keep is not None and done in self.run.snapshots:
                self.keep(done, state.model, read_metrics(self.log.path))
            if self._due(done, self.run.steps_per_checkpoint):
                saver.save(done, state.model, state.optimizer)
        return state

    def _due(self, done: int, every: int | None) -> bool:
        return every is not None and done % every == 0

    def _refuse_if_diverged(self, done: int, metrics: Mapping[str, float]) -> None:
        for name in ("train/loss", "train/grad_norm"):
            if not math.isfinite(metrics[name]):
                self.log.write(done, metrics)
                raise StageError(
                    "diverged",
                    f"{name}={metrics[name]} at step {done} of {self.ctx.recipe.address}; "
                    "lower the learning rate or warm up longer",
                )

    def _report(self, done: int, metrics: Mapping[str, float]) -> None:
        self.mirror.log(self.log.write(done, metrics))
        self.ctx.progress(
            done,
            self.run.num_steps,
            "steps",
            **{key: metrics[key] for key in LIVE if key in metrics},
        )
        self.uneven = self.uneven + 1 if metrics.get("moe/max_load_ratio", 0.0) > UNEVEN else 0
        if self.uneven == UNEVEN_STEPS:
            self.ctx.log(
                f"alarm: an expert took {metrics['moe/max_load_ratio']:.1f} fair shares of the "
                f"tokens for {UNEVEN_STEPS} steps, up to step {done}"
            )


class _Prefetch:
    """Makes batches in a thread, a few ahead; what it raises is raised by `next`."""

    def __init__(self, batches: Batches, first: int, last: int):
        self._ready: queue.Queue[Any] = queue.Queue(PREFETCHED)
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=self._fill, args=(batches, range(first, last)), daemon=True
        )

    def __enter__(self) -> "_Prefetch":
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._stop.set()
        self._thread.join()

    def next(self) -> dict[str, np.ndarray]:
        item = self._ready.get()
        if isinstance(item, BaseException):
            raise item
        return item

    def _fill(self, batches: Batches, steps: range) -> None:
        for item in _batches_or_error(batches, steps):
            while not self._stop.is_set():
                try:
                    self._ready.put(item, timeout=0.1)
                    break
                except queue.Full:
                    continue
            if self._stop.is_set():
                return


def _batches_or_error(batches: Batches, steps: range) -> Iterator[Any]:
    try:
        for step in steps:
            batch = batches.batch(step)
            yield {
                "tokens": batch.tokens,
                "targets": batch.targets,
                "loss_weights": batch.loss_weights,
                "segment_ids": batch.segment_ids,
            }
    except (OSError, ValueError, StageError) as error:
        yield error
