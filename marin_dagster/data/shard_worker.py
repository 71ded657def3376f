"""Runs tasks of a pickled datatrove pipeline in a process of its own, through an executor.

`python -m marin_dagster.data.shard_worker WORK FAILURE TASK…`, started by `pipeline.run_tasks`.
"""

import os
import pickle
import signal
import sys
import threading
import time

from marin_dagster.data.pipeline import JOB_FILE, write_json
from marin_dagster.recipe import StageError

_PARENT_CHECK_SECONDS = 1.0


def main(work: str, failure: str, tasks: list[int]) -> int:
    """Runs the tasks in order; returns the exit status, and leaves the reason in `failure`."""
    threading.Thread(target=_die_with_parent, args=(os.getppid(),), daemon=True).start()
    try:
        run(work, tasks)
    except StageError as error:
        write_json(failure, {"reason": error.reason, "message": error.message})
        return 1
    except MemoryError:
        message = "out of memory; give fewer workers or smaller shards"
        write_json(failure, {"reason": "oom", "message": message})
        return 1
    except OSError as error:
        write_json(failure, {"reason": "error", "message": f"{error}"})
        raise
    return 0


def run(work: str, tasks: list[int]) -> None:
    """Runs the tasks one after another with datatrove's local executor."""
    from datatrove.executor.local import LocalPipelineExecutor
    from loguru import logger

    logger.disable("datatrove")
    with open(os.path.join(work, JOB_FILE), "rb") as file:
        make_pipeline, num_tasks = pickle.load(file)
    for task in tasks:
        executor = LocalPipelineExecutor(
            make_pipeline(),
            tasks=num_tasks,
            workers=1,
            local_tasks=1,
            local_rank_offset=task,
            logging_dir=work,
        )
        executor.run()


def _die_with_parent(parent: int) -> None:
    """Kills this process group when the parent is gone: nobody would use the result."""
    while os.getppid() == parent:
        time.sleep(_PARENT_CHECK_SECONDS)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], [int(task) for task in sys.argv[3:]]))
