"""Turns "I want to build this" into the right to do so: one live attempt per address.

The attempts of an address are numbered files under `.attempts/`. Whoever creates the next number
holds the address until the attempt ends or its heartbeat stops. Each heartbeat replaces exactly
the version that the one before wrote. To take over, another builder replaces the version that it
found stale, which only one can do; the next heartbeat then fails, and the silent one knows that it
is buried. The number is also the name of the folder with the attempt's files, so two attempts never
share one, and a later attempt has a higher number.
"""

import dataclasses
import json
import logging
import threading
import time
import traceback
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any

from marin_dagster.failure import evidence_of, message_of, reason_of
from marin_dagster.process import ProcessId
from marin_dagster.recipe import StageError
from marin_dagster.storage import Storage

ATTEMPTS = ".attempts"
RUNNING, SUCCEEDED, FAILED = "running", "succeeded", "failed"
LOG_TAIL_LINES = 50
LOG_SECONDS = 1.0  # between two writes of the log: object stores limit writes of one key
OVER_SECONDS = 86_400.0  # a buried attempt that is silent for so long will not come back

logger = logging.getLogger(__name__)


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
    boot: str = ""  # with the next two: which process of that number
    namespace: str = ""
    process_started: str = ""
    run_id: str | None = None
    started: float
    heartbeat: float
    ended: float | None = None
    log_tail: tuple[str, ...] = ()
    token: str = ""  # unique to the attempt, so that no two attempts write the same bytes
    buried: bool = False  # another builder wrote its end, because it was silent
    evidence: Mapping[str, Any] = field(default_factory=dict)  # what the reason rests on

    @property
    def over(self) -> bool:
        """Whether it can write no more: it said so, its process is gone, or it is long silent."""
        if self.state != RUNNING and not self.buried:
            return True
        return process_is_gone(self) or time.time() - self.heartbeat > OVER_SECONDS


class Attempt:
    """A live attempt: keeps its heartbeat, writes its log, and records how it ended.

    Used as a context manager; an exception ends it as failed, with the exception's reason.
    """

    def __init__(
        self,
        storage: Storage,
        folder: str,
        info: AttemptInfo,
        version: str,
        heartbeat_seconds: float,
    ):
        self.info = info
        self._storage = storage
        self._folder = folder
        self._path = attempt_path(folder, info.number)
        self._version = version
        self._every = heartbeat_seconds
        self._stop = threading.Event()
        self._lost = threading.Event()
        self._lines: list[str] = []
        self._saved_lines = 0
        self._saved_at = 0.0
        self._writing = threading.Lock()  # the heartbeat and `check` write the same file
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
        try:
            self._save_log()
            if error is None:
                self._end(SUCCEEDED)
            else:
                self._end(FAILED, error)
        except OSError as lost:  # what the build did or raised stands, noted or not
            logger.warning("the end of attempt %d is not recorded: %s", self.info.number, lost)

    def log(self, line: str) -> None:
        """Adds a line to the attempt's log."""
        self._lines.append(f"{time.strftime('%H:%M:%S')} {line}")

    def check(self) -> None:
        """Beats once; raises StageError when another attempt has taken this address over."""
        if self._lost.is_set() or not self._renew(replace(self.info, heartbeat=time.time())):
            self._lost.set()
            self.alive()

    def alive(self) -> None:
        """Like `check`, from memory: cheap enough for every step of a loop."""
        if self._lost.is_set():
            raise StageError(
                "killed",
                f"attempt {self.info.number} at {self._folder} was silent for too long and "
                "another one took over; nothing of this one is kept",
            )

    def _beat(self) -> None:
        while not self._stop.wait(self._every):
            try:
                if not self._renew(replace(self.info, heartbeat=time.time())):
                    self._lost.set()
                    return
                if time.monotonic() - self._saved_at > LOG_SECONDS:
                    self._save_log()
            except OSError as error:  # the next beat may get through; if none does, others see it
                logger.warning("no heartbeat of attempt %d: %s", self.info.number, error)

    def _renew(self, info: AttemptInfo) -> bool:
        """Replaces this attempt's file; False when another builder has buried the attempt.

        A file that somebody deleted is written anew, unless its number was taken since.
        """
        with self._writing:
            version = self._storage.replace(self._path, _encode(info), self._version)
            while version is None:
                found = self._storage.read_version(self._path)
                if found is None:
                    version = self._storage.create(self._path, _encode(info))
                    continue
                now = _decode(found.data, info.number, self._path)
                if now.token != info.token or (now.buried and info.state == RUNNING):
                    return False
                version = self._storage.replace(self._path, _encode(info), found.version)
            self._version = version
            self.info = info
            return True

    def _save_log(self) -> None:
        lines = list(self._lines)
        if len(lines) == self._saved_lines:
            return
        text = "".join(f"{line}\n" for line in lines)
        self._storage.write(log_path(self._folder, self.info.number), text.encode(errors="replace"))
        self._saved_lines, self._saved_at = len(lines), time.monotonic()

    def _end(self, state: str, error: BaseException | None = None) -> None:
        """Records the end; an attempt that was buried too early corrects what stands there."""
        self._renew(
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
        last = last_attempt(storage, folder, above)
        if last is not None and last.state == RUNNING:
            if not is_stale(last):
                return last
            if not _bury(storage, folder, last.number, is_stale):
                continue  # it lives after all, or another builder was faster
        number = max(above, last.number if last else 0) + 1
        now, own = time.time(), ProcessId.own()
        info = AttemptInfo(
            number=number,
            state=RUNNING,
            fingerprint=fingerprint,
            host=own.host,
            pid=own.pid,
            boot=own.boot,
            namespace=own.namespace,
            process_started=own.started,
            run_id=run_id,
            started=now,
            heartbeat=now,
            token=uuid.uuid4().hex,
        )
        version = storage.create(attempt_path(folder, number), _encode(info))
        if version is not None:
            return Attempt(storage, folder, info, version, heartbeat_seconds)


def last_attempt(storage: Storage, folder: str, above: int = 0) -> AttemptInfo | None:
    """The attempt with the highest number; a listing is only where the search begins."""
    number = max([above, *_numbers(storage, folder)])
    while storage.size(attempt_path(folder, number + 1)) is not None:
        number += 1
    return read_attempt(storage, folder, number) if number else None


def attempts_of(storage: Storage, folder: str) -> list[AttemptInfo]:
    """All attempts at an address, oldest first."""
    found = [read_attempt(storage, folder, number) for number in _numbers(storage, folder)]
    return [info for info in found if info is not None]


def read_attempt(storage: Storage, folder: str, number: int) -> AttemptInfo | None:
    path = attempt_path(folder, number)
    content = storage.read(path)
    return None if content is None else _decode(content, number, storage.url(path))


def _decode(content: bytes, number: int, where: str) -> AttemptInfo:
    try:
        data = json.loads(content)
        return AttemptInfo(**{**data, "number": number, "log_tail": tuple(data["log_tail"])})
    except (ValueError, KeyError, TypeError):
        return _unreadable(number, where)


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
    """True when it can be told from here that the attempt's process does not exist any more."""
    process = ProcessId(
        host=info.host,
        boot=info.boot,
        namespace=info.namespace,
        pid=info.pid,
        started=info.process_started,
    )
    return process.lives() is False


def _bury(
    storage: Storage, folder: str, number: int, is_stale: Callable[[AttemptInfo], bool]
) -> bool:
    """Records the end of an attempt that could not do so itself; False when it has changed."""
    path = attempt_path(folder, number)
    found = storage.read_version(path)
    if found is None:
        return False
    dead = _decode(found.data, number, storage.url(path))
    if dead.state != RUNNING or not is_stale(dead):
        return False
    lines = (storage.read(log_path(folder, number)) or b"").decode(errors="replace")
    ended = replace(
        dead,
        state=FAILED,
        reason="killed",
        message=f"process {dead.pid} on {dead.host} ended without a word",
        ended=dead.heartbeat,
        log_tail=tuple(lines.splitlines()[-LOG_TAIL_LINES:]),
        buried=True,
    )
    return storage.replace(path, _encode(ended), found.version) is not None


def _numbers(storage: Storage, folder: str) -> list[int]:
    names = storage.names(f"{folder}/{ATTEMPTS}")
    return sorted(
        int(name[:-5]) for name in names if name.endswith(".json") and name[:-5].isdigit()
    )


def _encode(info: AttemptInfo) -> bytes:
    return json.dumps(dataclasses.asdict(info), indent=1).encode()
