"""Turns targets into a Dagster run in this process, with its progress on the terminal."""

import contextlib
import fcntl
import hashlib
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence

import dagster as dg
from dagster._cli.utils import get_possibly_temporary_instance_for_cli

from assets.progress import listen
from assets.stage import FORCE_TAG, tag_value
from marin_dagster.definitions import defs
from marin_dagster.recipe import Recipe

REFRESH_SECONDS = 0.5  # on a terminal
LINE_SECONDS = 10.0  # in a file


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
    with contextlib.ExitStack() as stack:
        with _one_at_a_time():  # Dagster's tables are made by the first command that comes
            instance = stack.enter_context(get_possibly_temporary_instance_for_cli("marin build"))
            instance.get_runs_count()
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
        printer.event(f"failed: {failed.description if failed else data.error_display_string}")
    return result.success


@contextlib.contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Lets one process of this machine at a time open the instance of the current folder."""
    name = hashlib.sha256(f"{os.getuid()} {os.getcwd()}".encode()).hexdigest()[:16]
    with open(os.path.join(tempfile.gettempdir(), f"marin-instance-{name}.lock"), "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
