"""Runs tasks of a pickled datatrove pipeline in a process of its own, through an executor.

`python -m marin_dagster.data.shard_worker WORK FAILURE FIRST LAST`; `pipeline.run_tasks` starts it.
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


def main(work: str, failure: str, first: int, last: int) -> int:
    """Runs tasks first..last; returns the exit status, and leaves the reason in `failure`."""
    threading.Thread(target=_die_with_parent, args=(os.getppid(),), daemon=True).start()
    try:
        run(work, first, last)
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


def run(work: str, first: int, last: int) -> None:
    """Runs the unfinished tasks of a range in order, with datatrove's local executor."""
    from datatrove.executor.local import LocalPipelineExecutor
    from loguru import logger

    logger.disable("datatrove")
    with open(os.path.join(work, JOB_FILE), "rb") as file:
        make_pipeline, num_tasks = pickle.load(file)
    executor = LocalPipelineExecutor(
        make_pipeline(),
        tasks=num_tasks,
        workers=1,
        local_tasks=last - first + 1,
        local_rank_offset=first,
        logging_dir=work,
    )
    executor.run()


def _die_with_parent(parent: int) -> None:
    """Kills this process group when the parent is gone: nobody would use the result."""
    while os.getppid() == parent:
        time.sleep(_PARENT_CHECK_SECONDS)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
