"""Turns "too many requests" and "slow down" into waiting, up to a limit."""

import logging
import random
import time
from collections.abc import Callable
from typing import Any

from marin_dagster.backends.base import Backend

FIRST_WAIT_SECONDS = 0.2
LONGEST_WAIT_SECONDS = 16.0
TOLD_SECONDS = 5.0  # nobody need know of shorter waits

logger = logging.getLogger(__name__)


class StorageError(OSError):
    """The store could not be reached, or it refused."""


def patiently(
    backend: Backend, limit_seconds: float, where: str, call: Callable[..., Any], *args: Any
) -> Any:
    """Calls until it works, waiting a random time that doubles at most after each transient error.

    Raises StorageError for any other error of the client, and when the limit is reached.
    """
    started = time.monotonic()
    longest = FIRST_WAIT_SECONDS
    tries, told = 0, False
    while True:
        tries += 1
        try:
            return call(*args)
        except backend.errors as error:
            if not backend.transient(error):
                raise StorageError(f"{where}: {error}") from error
            wait = random.uniform(longest / 2, longest)
            spent = time.monotonic() - started
            if spent + wait > limit_seconds:
                raise StorageError(
                    f"{where}: still refused after {tries} tries in {spent:.0f} s, the limit is "
                    f"{limit_seconds:.0f} s: {error}; see whether it can be reached, or run again "
                    "when it is less busy"
                ) from error
            if not told and spent > TOLD_SECONDS:
                told = True
                logger.warning("%s: %s; trying for up to %.0f s", where, error, limit_seconds)
        time.sleep(wait)
        longest = min(longest * 2, LONGEST_WAIT_SECONDS)
