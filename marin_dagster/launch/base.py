"""Turns a job (a command with an environment) into processes on some hosts: the protocol."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from marin_dagster.recipe import REASONS


@dataclass(frozen=True, kw_only=True)
class HostType:
    """A kind of host, described once for every launcher.

    `topology` is how a slice's chips are wired, as 4x4; a slice has several hosts.
    """

    name: str
    accelerator: str = "cpu"  # as the launcher's scheduler names it
    accelerators: int = 0  # of one host
    cpus: int | None = None
    memory_bytes: int | None = None
    topology: str | None = None


@dataclass(frozen=True, kw_only=True)
class Job:
    """What to run: one command, in `processes` processes, each on a host of its own kind.

    Every process finds MARIN_PROCESSES, how many there are, MARIN_PROCESS, which it is, and
    MARIN_COORDINATOR, where process 0 listens as host:port; the launcher provides them where
    there are several. `logs` is a folder, local or of an object store, that has a file
    `{process:04d}.log` of what each process printed, at the latest when `cancel` returns.
    """

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    logs: str
    processes: int = 1
    host: HostType = HostType(name="this")


@dataclass(frozen=True, kw_only=True)
class JobState:
    """Where a job is. `reason` says why it failed, as far as the scheduler knows.

    A job that the scheduler does not know any more is done, and has not succeeded. `waits` says
    what a job that has not started waits for.
    """

    done: bool
    succeeded: bool = False
    reason: str | None = None
    waits: str | None = None
    evidence: Mapping[str, Any] = field(default_factory=dict)  # signal, exit code, node, process

    def __post_init__(self) -> None:
        assert self.reason is None or self.reason in REASONS


class Launcher(Protocol):
    """Starts jobs somewhere.

    A handle of a cluster's job is a string, which any launcher of the same settings can use, in
    another process too; that of a job on this machine is for this process alone.
    """

    def preflight(self, job: Job) -> list[str]:
        """What is missing before the job can start: programs, credentials, quota, image."""
        ...

    def submit(self, job: Job) -> Any: ...

    def state(self, handle: Any) -> JobState: ...

    def dump_stacks(self, handle: Any) -> None:
        """Asks all processes to write the stacks of their threads into their logs."""
        ...

    def cancel(self, handle: Any) -> None:
        """Ends the job and all that it holds; returns when nothing is left, and may be repeated."""
        ...

    def logs(self, handle: Any, process: int = 0, lines: int = 50) -> list[str]:
        """The last lines that a process printed."""
        ...
