"""One of several processes that train together, wherever a launcher has started them.

`python -m tests.integration.trainee ROOT`: under ROOT resume points are shared; each process has
its own folder for all else. It says each step in its log, and takes its time.
"""

import dataclasses
import os
import sys
import time
from pathlib import Path

import jax

from marin_dagster.failure import exit_code_of
from marin_dagster.recipe import Placement, StageError
from marin_dagster.training.loop import RESUME, train
from tests.unit.models.test_layers import TINY
from tests.unit.training.test_loop import ROWS, RUN, VOCAB, CountingRows, context

STEPS = 40
STEP_SECONDS = 0.1


class Rows(CountingRows):
    def batch(self, step):
        print(f"step {step}", flush=True)
        time.sleep(STEP_SECONDS)
        return super().batch(step)


def work_of(root: Path, process: int) -> Path:
    return Path(context(root / str(process)).work)


def main(root: Path) -> int:
    process, processes = (int(os.environ[f"MARIN_PROCESS{end}"]) for end in ("", "ES"))
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(
        os.environ["MARIN_COORDINATOR"],
        num_processes=processes,
        process_id=process,
        cluster_detection_method="deactivate",
    )
    ctx = context(root / str(process))
    ctx.placement = Placement(wandb_mode="disabled")
    points = work_of(root, process) / RESUME
    if not points.is_symlink():
        (root / "points").mkdir(exist_ok=True)
        points.symlink_to(root / "points")
    how = dataclasses.replace(RUN, num_steps=STEPS, steps_per_checkpoint=10 * STEPS)
    try:
        train(ctx, TINY.make(VOCAB, jax.random.key(0)), Rows(), {}, ROWS, how)
    except StageError as error:
        print(error.reason, error.message, flush=True)
        return exit_code_of(error)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
