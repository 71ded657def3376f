"""Turns targets into a Dagster run in this process, with its progress on the terminal."""

import sys
import time
import warnings
from collections.abc import Sequence

import dagster as dg
from dagster._cli.utils import get_possibly_temporary_instance_for_cli

from assets.progress import listen
from assets.stage import FORCE_TAG, tag_value
from jobs.reconcile import reconcile
from marin_dagster.definitions import defs
from marin_dagster.recipe import Recipe
from marin_dagster.store import Store

REFRESH_SECONDS = 0.5  # on a terminal
LINE_SECONDS = 10.0  # in a file
INTERRUPTS = ("KeyboardInterrupt", "Terminated", "DagsterExecutionInterruptedError")


class Printer:
    """Prints events as lines, and progress in place on a terminal, now and then in a file."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._last = time.monotonic()
        self._open = False

    def progress(self, line: str) -> None:
        now = time.monotonic()
        if now - self._last < (REFRESH_SECONDS if self._terminal else LINE_SECONDS):
            return
        self._last = now
        self._open = self._terminal
        start, end = ("\r\x1b[K", "") if self._terminal else ("", "\n")
        print(f"{start}      {line}", end=end, file=sys.stderr, flush=True)

    def event(self, line: str) -> None:
        if self._open:
            print("\r\x1b[K", end="", file=sys.stderr)
        self._open = False
        self._last = time.monotonic()
        print(line, file=sys.stderr, flush=True)


def reconcile_runs(store: Store) -> list[str]:
    """Ends the runs of this instance whose worker is gone; returns a line for each."""
    warnings.filterwarnings("ignore")
    with get_possibly_temporary_instance_for_cli("marin reconcile") as instance:
        return [finding.text for finding in reconcile(instance, store)]


def build_in_foreground(targets: Sequence[Recipe], *, force: bool) -> bool:
    """Materializes the first target's partition of `build`, with the others as `also`.

    Returns whether it succeeded.
    The run, and the run of each artifact, are recorded in the instance that `dagster dev` shows.
    """
    warnings.filterwarnings("ignore")
    printer = Printer()
    listen(printer)
    target, *others = targets
    job = defs.resolve_implicit_global_asset_job_def()
    tags = {"marin/target": tag_value(target.address)}
    if force:
        tags[FORCE_TAG] = tag_value(target.address)
    also = {"also": [other.address for other in others]}
    config = {
        "loggers": {"console": {"config": {"log_level": "CRITICAL"}}},
        "ops": {"build": {"config": also}},
    }
    with get_possibly_temporary_instance_for_cli("marin build") as instance:
        result = job.execute_in_process(
            instance=instance,
            asset_selection=[dg.AssetKey("build")],
            partition_key=target.address,
            raise_on_error=False,
            tags=tags,
            run_config=config,
        )
    for event in result.get_step_failure_events():
        data = event.step_failure_data
        failed = data.user_failure_data
        if failed is not None:
            printer.event(f"failed: {failed.description}")
        elif data.error is not None and data.error.cls_name in INTERRUPTS:
            printer.event("interrupted; build again to go on from the last resume point")
        else:
            printer.event(f"failed: {data.error_display_string}")
    return result.success
