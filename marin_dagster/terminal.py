"""Turns results and errors into lines of a terminal, for all commands alike."""

import sys
from collections.abc import Callable
from functools import wraps

import click
from rich.console import Console

from marin_dagster.recipe import StageError

WIDE = 240  # columns of a table that goes into a file or a pipe
console = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else WIDE)


def clear_errors(command: Callable) -> Callable:
    """Shows what a person can mend as one line, without a traceback; the exit code is 2."""

    @wraps(command)
    def wrapped(*args, **kwargs):
        try:
            return command(*args, **kwargs)
        except (ValueError, TypeError, StageError, OSError) as error:
            click.secho(f"error: {error}", fg="red", err=True)
            sys.exit(2)

    return wrapped
