"""Turns a job (a command with an environment) into processes on some hosts: the protocol."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from marin_dagster.recipe import REASONS


@dataclass(frozen=True, kw_only=True)
class Job:
    """What to run. `log` is a local file that receives what the processes print."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    log: str


@dataclass(frozen=True, kw_only=True)
class JobState:
    """Where a job is. `reason` says why it failed, as far as the scheduler knows.

    A job that the scheduler does not know any more is done, and has not succeeded.
    """

    done: bool
    succeeded: bool = False
    reason: str | None = None
    evidence: Mapping[str, Any] = field(default_factory=dict)  # signal, exit code

    def __post_init__(self) -> None:
        assert self.reason is None or self.reason in REASONS


class Launcher(Protocol):
    """Starts jobs somewhere. A handle is whatever the launcher needs to find its job again."""

    def submit(self, job: Job) -> Any: ...

    def state(self, handle: Any) -> JobState: ...

    def dump_stacks(self, handle: Any) -> None:
        """Asks the job to write the stacks of its threads into its log."""
        ...

    def cancel(self, handle: Any) -> None:
        """Ends the job and everything that it started; returns when nothing of it is left."""
        ...

    def logs(self, handle: Any, lines: int = 50) -> list[str]: ...
