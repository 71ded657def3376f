"""Trains the toy in a process of its own: `python -m tests.unit.training.toy_process ROOT WHERE`.

It prints WHERE, and stays there for a while, when it comes to that place: `compile`, `evaluation`,
`step` (a moment), `endless` (a step that does not end), `hang` (the same, noticed by the watchdog).
"""

import dataclasses
import sys
import time
from pathlib import Path

import numpy as np

from marin_dagster.failure import exit_code_of
from marin_dagster.recipe import Placement, StageError
from marin_dagster.termination import termination
from marin_dagster.training import loop, watchdog
from tests.unit.training import toy
from tests.unit.training.test_loop import ROWS, RUN, CountingRows, context

STEPS, AT, LONG = 12, 7, 60.0
GRACE_SECONDS = 30.0
SHORT_SECONDS = 4.0  # for a step that does not end


class Rows(CountingRows):
    def batch(self, step):
        batch = super().batch(step)
        return batch._replace(tokens=batch.tokens % toy.VOCAB, targets=batch.targets % toy.VOCAB)


class WiderRows(Rows):
    """Another phase begins at `AT`, so a program is compiled in the middle of the run."""

    def batch(self, step):
        batch = super().batch(step)
        if step < AT:
            return batch
        return type(batch)(*(np.concatenate([field, field]) for field in batch))


def stay(place: str, seconds: float) -> None:
    print(place, flush=True)
    until = time.monotonic() + seconds
    while time.monotonic() < until:  # a signal cuts one sleep short
        time.sleep(until - time.monotonic())


def main(root: str, where: str) -> int:
    seen = set()

    def make_step(*args, **options):
        quick = toy.make_step(*args, **options)

        def step(state, batch):
            at = int(state.step) + 1
            if where in ("step", "endless", "hang") and at == AT:
                stay(where, 1.0 if where == "step" else LONG)
            if where == "compile" and seen and batch["tokens"].shape not in seen:
                stay(where, LONG)
            seen.add(batch["tokens"].shape)
            return quick(state, batch)

        return step

    def evaluate(model, validation, batch_size):
        if where == "evaluation":
            stay(where, LONG)
        return {"eval/loss": 1.0}

    loop.make_step, loop.initial_state, loop.evaluate = make_step, toy.initial_state, evaluate
    loop.check_memory = lambda *_: None
    if where == "hang":
        watchdog.LEAST_SECONDS, watchdog.TIMED, watchdog.STEPS = 1.0, 3, 1.0
    how = dataclasses.replace(RUN, num_steps=STEPS, steps_per_checkpoint=4, steps_per_eval=AT)
    ctx = context(Path(root))
    grace = SHORT_SECONDS if where == "endless" else GRACE_SECONDS
    ctx.placement = Placement(wandb_mode="disabled", grace_seconds=grace)
    termination.listen(lambda reason, message, evidence: print(reason, message, flush=True))
    rows = WiderRows() if where in ("compile", "wide") else Rows()
    try:
        loop.train(ctx, toy.new_model(), rows, {}, ROWS, how)
    except StageError as error:
        print(error.reason, error.message, flush=True)
        return exit_code_of(error)
    print("done", *ctx.messages, sep="\n", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
