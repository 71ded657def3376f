"""Turns processes into families: who started whom, who lives, and how all of them end."""

import contextlib
import ctypes
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from marin_dagster.failure import Terminated

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # Linux, prctl(2)
KILL_SECONDS = 2.0  # the kernel takes a moment to end what was killed


def die_with_parent(number: int = signal.SIGKILL) -> None:
    """Asks the kernel to send this process a signal when its parent ends, however that happens.

    Call it first in every child. Where the kernel cannot (not Linux), nothing happens.
    """
    parent = os.getppid()
    if not _prctl(PR_SET_PDEATHSIG, number):
        return
    if parent == 1 or os.getppid() != parent:  # it ended before the kernel was asked
        os._exit(1)


def adopt_orphans(wanted: bool = True) -> None:
    """Makes descendants whose parent ends children of this process, so that none gets lost."""
    _prctl(PR_SET_CHILD_SUBREAPER, int(wanted))


def _prctl(option: int, value: int) -> bool:
    if not sys.platform.startswith("linux"):
        return False
    return ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) == 0


def descendants(pid: int) -> list[int]:
    """The living processes below `pid`, parents before their children."""
    below: dict[int, list[int]] = {}
    for entry in os.listdir("/proc") if os.path.isdir("/proc") else ():
        fields = _stat(int(entry)) if entry.isdigit() else None
        if fields is not None and fields[0] != "Z":
            below.setdefault(int(fields[1]), []).append(int(entry))
    found, todo = [], [pid]
    while todo:
        children = below.get(todo.pop(), [])
        found += children
        todo += children
    return found


def process_exists(pid: int) -> bool:
    """True when this host has such a process and it has not ended."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    fields = _stat(pid)
    return fields is None or fields[0] != "Z"


def send(pids: list[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def kill_descendants(pid: int, spare: frozenset[int] = frozenset()) -> None:
    """Kills everything below `pid` but the trees of its children in `spare`; waits for the end."""
    deadline = time.monotonic() + KILL_SECONDS
    while time.monotonic() < deadline:
        kept = {one for child in spare for one in (child, *descendants(child))}
        left = [one for one in descendants(pid) if one not in kept]
        if not left:
            return
        send(left, signal.SIGKILL)
        time.sleep(0.02)


@contextlib.contextmanager
def family() -> Iterator[None]:
    """Ends what the block has started and left behind if the block fails or is interrupted.

    Also what has made itself a session of its own. SIGTERM is raised as `Terminated` within.
    """
    spare = frozenset(descendants(os.getpid()))
    adopt_orphans()
    try:
        with _sigterm_as_exception():
            yield
    except BaseException:
        trackers = {pid for pid in descendants(os.getpid()) if _is_resource_tracker(pid)}
        kill_descendants(os.getpid(), spare | trackers)
        raise
    finally:
        adopt_orphans(False)


@contextlib.contextmanager
def _sigterm_as_exception() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def terminate(number: int, frame: object) -> None:
        raise Terminated("SIGTERM")

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _is_resource_tracker(pid: int) -> bool:
    """Python's own helper, which later work of this process will want to find alive."""
    with contextlib.suppress(OSError):
        return b"multiprocessing.resource_tracker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


@dataclass(frozen=True, kw_only=True)
class ProcessId:
    """A process that can be recognized later: numbers are used again, and hosts start again."""

    host: str
    boot: str  # of the kernel
    namespace: str  # of process numbers: containers have their own
    pid: int
    started: str  # ticks since the boot

    @classmethod
    def own(cls) -> "ProcessId":
        fields = _stat(os.getpid())
        return cls(
            host=socket.gethostname(),
            boot=_boot_id(),
            namespace=_namespace(),
            pid=os.getpid(),
            started=fields[19] if fields else "",
        )

    def lives(self) -> bool | None:
        """Whether the process is there; None when it cannot be told from here."""
        if self.host != socket.gethostname() or not self.boot:
            return None
        if self.boot != _boot_id():
            return False
        if self.namespace != _namespace():
            return None
        fields = _stat(self.pid)
        return fields is not None and fields[0] != "Z" and fields[19] == self.started


def _stat(pid: int) -> list[str] | None:
    """What /proc says of a process, from its state on; None when there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


def _boot_id() -> str:
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""


def _namespace() -> str:
    with contextlib.suppress(OSError):
        return os.readlink("/proc/self/ns/pid")
    return ""
