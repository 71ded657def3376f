"""Turns "I want to build this" into the right to do so: one live attempt per address.

The attempts of an address are numbered files under `.attempts/`. Whoever creates the next number
holds the address until the attempt ends or its heartbeat stops; creating a file that must not
exist yet is the only atomic operation that this needs, so it holds on every filesystem. The
number is also the name of the folder with the attempt's files, so two attempts never share one.
"""

import dataclasses
import json
import os
import socket
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any

from marin_dagster.failure import evidence_of, message_of, reason_of
from marin_dagster.process import process_exists
from marin_dagster.recipe import StageError
from marin_dagster.storage import Storage

ATTEMPTS = ".attempts"
RUNNING, SUCCEEDED, FAILED = "running", "succeeded", "failed"
LOG_TAIL_LINES = 50


@dataclass(frozen=True, kw_only=True)
class AttemptInfo:
    """What is known of one attempt; times are seconds since 1970."""

    number: int
    state: str  # running | succeeded | failed
    reason: str | None = None  # one of recipe.REASONS, once failed
    message: str | None = None
    fingerprint: str
    host: str
    pid: int
    run_id: str | None = None
    started: float
    heartbeat: float
    ended: float | None = None
    log_tail: tuple[str, ...] = ()
    evidence: Mapping[str, Any] = field(default_factory=dict)  # what the reason rests on


class Attempt:
    """A live attempt: keeps its heartbeat, writes its log, and records how it ended.

    Used as a context manager; an exception ends it as failed, with the exception's reason.
    """

    def __init__(self, storage: Storage, folder: str, info: AttemptInfo, heartbeat_seconds: float):
        self.info = info
        self._storage = storage
        self._folder = folder
        self._path = attempt_path(folder, info.number)
        self._next = attempt_path(folder, info.number + 1)
        self._every = heartbeat_seconds
        self._stop = threading.Event()
        self._lost = threading.Event()
        self._lines: list[str] = []
        self._thread = threading.Thread(target=self._beat, daemon=True, name="marin-heartbeat")

    def __enter__(self) -> "Attempt":
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()
        if error is not None and not isinstance(error, StageError):
            for line in "".join(traceback.format_exception(error)).splitlines():
                self.log(line)
        self._save_log()
        if error is None:
            self._end(SUCCEEDED)
        else:
            self._end(FAILED, error)

    def log(self, line: str) -> None:
        """Adds a line to the attempt's log."""
        self._lines.append(f"{time.strftime('%H:%M:%S')} {line}")

    def check(self) -> None:
        """Raises StageError when another attempt has taken this address over."""
        if self._lost.is_set() or self._storage.size(self._next) is not None:
            raise StageError(
                "killed",
                f"attempt {self.info.number} at {self._folder} was silent for too long and "
                "another one took over; nothing of this one is kept",
            )

    def alive(self) -> None:
        """Like `check`, from memory: cheap enough for every step of a loop."""
        if self._lost.is_set():
            self.check()

    def _beat(self) -> None:
        while not self._stop.wait(self._every):
            if self._storage.size(self._next) is not None:
                self._lost.set()
                return
            self._write(replace(self.info, heartbeat=time.time()))
            self._save_log()

    def _save_log(self) -> None:
        text = "".join(f"{line}\n" for line in list(self._lines))
        self._storage.write(log_path(self._folder, self.info.number), text.encode(errors="replace"))

    def _end(self, state: str, error: BaseException | None = None) -> None:
        self._write(
            replace(
                self.info,
                state=state,
                reason=reason_of(error) if error else None,
                message=message_of(error) if error else None,
                evidence=evidence_of(error) if error else {},
                heartbeat=time.time(),
                ended=time.time(),
                log_tail=tuple(self._lines[-LOG_TAIL_LINES:]) if state == FAILED else (),
            )
        )

    def _write(self, info: AttemptInfo) -> None:
        self.info = info
        self._storage.write(self._path, _encode(info))


def start_attempt(
    storage: Storage,
    folder: str,
    *,
    fingerprint: str,
    run_id: str | None,
    heartbeat_seconds: float,
    is_stale: Callable[[AttemptInfo], bool],
    above: int = 0,
) -> Attempt | AttemptInfo:
    """Starts the next attempt at `folder`, or returns the live one that holds it.

    Its number is larger than `above`, the largest that is taken by files.
    """
    while True:
        last = last_attempt(storage, folder)
        if last is not None and last.state == RUNNING:
            if not is_stale(last):
                return last
            _bury(storage, folder, last)
        number = max(above, last.number if last else 0) + 1
        now = time.time()
        info = AttemptInfo(
            number=number,
            state=RUNNING,
            fingerprint=fingerprint,
            host=socket.gethostname(),
            pid=os.getpid(),
            run_id=run_id,
            started=now,
            heartbeat=now,
        )
        if storage.create(attempt_path(folder, number), _encode(info)):
            return Attempt(storage, folder, info, heartbeat_seconds)


def last_attempt(storage: Storage, folder: str) -> AttemptInfo | None:
    numbers = _numbers(storage, folder)
    number = numbers[-1] if numbers else 0
    while storage.size(attempt_path(folder, number + 1)) is not None:  # a listing may lag behind
        number += 1
    return read_attempt(storage, folder, number) if number else None


def attempts_of(storage: Storage, folder: str) -> list[AttemptInfo]:
    """All attempts at an address, oldest first."""
    found = [read_attempt(storage, folder, number) for number in _numbers(storage, folder)]
    return [info for info in found if info is not None]


def read_attempt(storage: Storage, folder: str, number: int) -> AttemptInfo | None:
    content = storage.read(attempt_path(folder, number))
    if content is None:
        return None
    try:
        data = json.loads(content)
        return AttemptInfo(**{**data, "number": number, "log_tail": tuple(data["log_tail"])})
    except (ValueError, KeyError, TypeError):
        return _unreadable(number, storage.url(attempt_path(folder, number)))


def _unreadable(number: int, path: str) -> AttemptInfo:
    """What stands for an attempt whose file is not what this project writes."""
    return AttemptInfo(
        number=number,
        state=FAILED,
        reason="killed",
        message=f"the attempt's file {path} cannot be read",
        fingerprint="",
        host="",
        pid=0,
        started=0.0,
        heartbeat=0.0,
        ended=0.0,
    )


def attempt_path(folder: str, number: int) -> str:
    return f"{folder}/{ATTEMPTS}/{number:04d}.json"


def log_path(folder: str, number: int) -> str:
    return f"{folder}/{ATTEMPTS}/{number:04d}.log"


def process_is_gone(info: AttemptInfo) -> bool:
    """True when the attempt ran on this host and its process does not exist any more."""
    return info.host == socket.gethostname() and not process_exists(info.pid)


def _bury(storage: Storage, folder: str, dead: AttemptInfo) -> None:
    """Records the end of an attempt that could not do so itself."""
    lines = (storage.read(log_path(folder, dead.number)) or b"").decode(errors="replace")
    ended = replace(
        dead,
        state=FAILED,
        reason="killed",
        message=f"process {dead.pid} on {dead.host} ended without a word",
        ended=dead.heartbeat,
        log_tail=tuple(lines.splitlines()[-LOG_TAIL_LINES:]),
    )
    storage.write(attempt_path(folder, dead.number), _encode(ended))


def _numbers(storage: Storage, folder: str) -> list[int]:
    names = storage.names(f"{folder}/{ATTEMPTS}")
    return sorted(
        int(name[:-5]) for name in names if name.endswith(".json") and name[:-5].isdigit()
    )


def _encode(info: AttemptInfo) -> bytes:
    return json.dumps(dataclasses.asdict(info), indent=1).encode()
