"""Turns recipes into artifacts under a prefix: complete with a record, or not there at all."""

import hashlib
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from marin_dagster import record as records
from marin_dagster.attempt import (
    LOG_TAIL_LINES,
    Attempt,
    AttemptInfo,
    attempts_of,
    last_attempt,
    log_path,
    process_is_gone,
    start_attempt,
)
from marin_dagster.code import code_digest
from marin_dagster.plan import DAMAGED, REUSE, Judgement, describe, drift_behind, judge
from marin_dagster.recipe import Placement, Recipe, StageError, Summary, walk
from marin_dagster.record import RECORD, Record
from marin_dagster.storage import Storage

CHECKSUM_LIMIT_BYTES = 4 * 2**30  # larger inputs are checked by size alone when they are read

Progress = Callable[[float, float | None, str, Mapping[str, float]], None]
Log = Callable[[str], None]
Work = Callable[["BuildContext"], Summary]


class CountsError(StageError):
    """A build that kept nothing, or whose counts do not balance."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What `Store.build` did: the record that stands now, and why it was reused or made."""

    record: Record
    judgement: Judgement

    @property
    def reused(self) -> bool:
        return self.judgement.action == REUSE


class Store:
    """The artifacts under one prefix, on any fsspec filesystem.

    `drift="error"` refuses to reuse a fixed version whose recipe, code or inputs have changed
    since. A writer that is silent for `stale_seconds` loses its address.
    """

    def __init__(
        self,
        prefix: str,
        *,
        drift: str = "warn",
        heartbeat_seconds: float = 10.0,
        stale_seconds: float = 60.0,
        poll_seconds: float = 0.5,
        cache: str | None = None,
    ):
        if drift not in ("warn", "error"):
            raise ValueError(f"drift={drift!r} is neither 'warn' nor 'error'; set MARIN_DRIFT")
        self.storage = Storage(prefix)
        self.drift = drift
        self._heartbeat_seconds = heartbeat_seconds
        self._stale_seconds = stale_seconds
        self._poll_seconds = poll_seconds
        name = hashlib.sha256(self.prefix.encode()).hexdigest()[:12]
        base = cache or os.path.join(tempfile.gettempdir(), f"marin-cache-{os.getuid()}")
        self.cache = os.path.join(base, name)  # local copies of what lies at a remote prefix
        self._verified: set[tuple[str, str]] = set()

    @property
    def prefix(self) -> str:
        return self.storage.prefix

    def folder(self, recipe: Recipe) -> str:
        """`stage/name/version`, relative to the prefix."""
        return f"{recipe.stage}/{recipe.name}/{recipe.version}"

    def url(self, recipe: Recipe) -> str:
        """Where an artifact lies, as a person would open it."""
        return self.storage.url(self.folder(recipe))

    def data_url(self, recipe: Recipe, record: Record) -> str:
        """Where the files of an artifact lie."""
        return f"{self.url(recipe)}/{record.attempt:04d}"

    def record(self, recipe: Recipe) -> Record | None:
        """The record of a complete artifact; None when there is none.

        Raises StageError when there is a record that cannot be read.
        """
        content = self.storage.read(f"{self.folder(recipe)}/{RECORD}")
        if content is None:
            return None
        try:
            return Record.from_json(content)
        except (ValueError, KeyError, TypeError) as error:
            raise StageError(
                "bad_input",
                f"the record of {recipe.address} at {self.url(recipe)}/{RECORD} cannot be read: "
                f"{error}; build it again with `marin build {recipe.address} --run --force`",
            ) from error

    def damage(self, recipe: Recipe, record: Record, *, checksums: bool) -> list[str]:
        """Lists files that are not as the record says: missing, of another size or content."""
        base = f"{self.folder(recipe)}/{record.attempt:04d}"
        found = []
        for file in record.files:
            size = self.storage.size(f"{base}/{file.path}")
            if size is None:
                found.append(f"{file.path} is missing")
            elif size != file.bytes:
                found.append(f"{file.path} has {size} bytes, its record says {file.bytes}")
        if found or not checksums:
            return found
        local = self.localize(recipe, record)
        return [
            f"{file.path} has other content than its record says (SHA-256)"
            for file in record.files
            if records.sha256_of(Path(local, file.path)) != file.sha256
        ]

    def attempts(self, recipe: Recipe) -> list[AttemptInfo]:
        """All attempts at an artifact, oldest first, failures included."""
        return attempts_of(self.storage, self.folder(recipe))

    def last_attempt(self, recipe: Recipe) -> AttemptInfo | None:
        return last_attempt(self.storage, self.folder(recipe))

    def log_url(self, recipe: Recipe, number: int) -> str:
        """Where the log of an attempt lies."""
        return self.storage.url(log_path(self.folder(recipe), number))

    def log_tail(self, recipe: Recipe, number: int) -> list[str]:
        """The last lines of an attempt's log, also of one that is going on."""
        content = self.storage.read(log_path(self.folder(recipe), number)) or b""
        return content.decode(errors="replace").splitlines()[-LOG_TAIL_LINES:]

    def localize(self, recipe: Recipe, record: Record) -> str:
        """Returns a local folder with an artifact's files, copied there if they are remote."""
        base = f"{self.folder(recipe)}/{record.attempt:04d}"
        if self.storage.local:
            return self.storage.full(base)
        folder = os.path.join(self.cache, base, record.digest)
        missing = [
            file.path
            for file in record.files
            if not os.path.exists(os.path.join(folder, file.path))
        ]
        self.storage.download(base, folder, missing)
        return folder

    def read_input(self, recipe: Recipe) -> tuple[Record, str]:
        """Returns the record and local folder of a complete artifact, after checking its files.

        Raises StageError that names the artifact when it is absent or damaged.
        """
        record = self.record(recipe)
        if record is None:
            last = self.last_attempt(recipe)
            state = f"its last attempt is {last.state} ({last.reason})" if last else "never built"
            raise StageError(
                "bad_input",
                f"input {recipe.address} is not complete at {self.url(recipe)}: {state}; build it "
                f"with `marin build {recipe.address} --run`",
            )
        if (recipe.address, record.digest) not in self._verified:
            full = record.size_bytes <= CHECKSUM_LIMIT_BYTES
            damage = self.damage(recipe, record, checksums=full)
            if damage:
                raise StageError("bad_input", damage_message(self.url(recipe), recipe, damage))
            self._verified.add((recipe.address, record.digest))
        return record, self.localize(recipe, record)

    def build(
        self,
        recipe: Recipe,
        *,
        work: Work | None = None,
        placement: Placement | None = None,
        force: bool = False,
        run_id: str | None = None,
        progress: Progress | None = None,
        log: Log | None = None,
    ) -> Outcome:
        """Makes the artifact unless it is there: the one way to build.

        `work` runs the recipe elsewhere; by default `recipe.build` runs here. When another process
        builds the same address, waits for it and reuses what it made.

        Raises StageError when an input is missing or damaged, when the store cannot be written,
        when drift is refused, and whatever the recipe raises.
        """
        say = log or (lambda message: None)
        while True:
            judgement = judge(self, recipe, force=force)
            if judgement.action == REUSE:
                self._refuse_drift(recipe, judgement)
                self._refuse_drift_behind(recipe)
                record = self.record(recipe)
                assert record is not None
                return Outcome(record=record, judgement=judgement)
            if judgement.action == DAMAGED:
                raise StageError(
                    "bad_input", damage_message(self.url(recipe), recipe, [judgement.reason])
                )
            for item in recipe.inputs:
                self.read_input(item)
            self._refuse_drift_behind(recipe)
            attempt = self._start(recipe, run_id)
            if isinstance(attempt, Attempt):
                break
            self._wait(recipe, attempt, say)
            force = False
        with attempt:
            again = judge(self, recipe, force=force)
            if again.action == REUSE:  # finished by another process between the look and the start
                record = self.record(recipe)
                assert record is not None
                attempt.log("another process had finished this artifact; reused")
                return Outcome(record=record, judgement=again)
            say(f"{recipe.address}: attempt {attempt.info.number}, {describe(judgement)}")
            context = BuildContext(
                store=self,
                recipe=recipe,
                attempt=attempt,
                placement=placement or Placement(),
                on_progress=progress,
                on_log=log,
            )
            summary = (work or (lambda ctx: ctx.recipe.build(ctx)))(context)
            record = self._commit(context, summary)
        return Outcome(record=record, judgement=judgement)

    def _start(self, recipe: Recipe, run_id: str | None) -> Attempt | AttemptInfo:
        folder = self.folder(recipe)
        try:
            return start_attempt(
                self.storage,
                folder,
                fingerprint=recipe.fingerprint,
                run_id=run_id,
                heartbeat_seconds=self._heartbeat_seconds,
                is_stale=self._is_stale,
                above=max(map(int, filter(str.isdigit, self.storage.names(folder))), default=0),
            )
        except OSError as error:  # read-only file system, no space, a bucket that refuses
            raise self._unwritable(error) from error

    def _unwritable(self, error: OSError) -> StageError:
        return StageError(
            "bad_input",
            f"the prefix {self.prefix} cannot be written: {error}; set MARIN_PREFIX to a folder "
            "or bucket that you may write",
        )

    def is_silent(self, info: AttemptInfo) -> bool:
        """True when a running attempt has given no sign of life for longer than it should."""
        return time.time() - info.heartbeat > self._stale_seconds

    def _is_stale(self, info: AttemptInfo) -> bool:
        return process_is_gone(info) or self.is_silent(info)

    def _wait(self, recipe: Recipe, other: AttemptInfo, say: Log) -> None:
        say(
            f"{recipe.address} is being built by process {other.pid} on {other.host} (attempt "
            f"{other.number}); waiting for it"
        )
        while True:
            last = self.last_attempt(recipe)
            if last is None or last.number != other.number or last.state != "running":
                return
            if self._is_stale(last):
                return
            time.sleep(self._poll_seconds)

    def _refuse_drift(self, recipe: Recipe, judgement: Judgement) -> None:
        changed = [item for item in judgement.differences if item.part != "library"]
        if self.drift == "error" and changed:
            raise StageError(
                "bad_input",
                f"{recipe.address} has drifted and MARIN_DRIFT=error: "
                f"{'; '.join(str(item) for item in changed)}; give it a new version, undo the "
                "change, or set MARIN_DRIFT=warn",
            )

    def _refuse_drift_behind(self, recipe: Recipe) -> None:
        """Like `_refuse_drift`, for everything that an artifact was or will be made from."""
        if self.drift == "error":
            for address, judgement in drift_behind(self, [recipe], {}).items():
                if address != recipe.address:
                    self._refuse_drift(walk([recipe])[address], judgement)

    def _commit(self, context: "BuildContext", summary: Summary) -> Record:
        recipe, attempt = context.recipe, context.attempt
        attempt.check()
        checked = _checked_summary(recipe, summary)
        plots = _write_plots(context.out, summary)
        files = records.manifest(context.out)
        if not files:
            raise StageError("error", f"{recipe.address} wrote no file to {context.out}")
        folder = self.folder(recipe)
        if not self.storage.local:
            names = [file.path for file in files]
            self.storage.upload(context.out, f"{folder}/{attempt.info.number:04d}", names)
        record = Record(
            address=recipe.address,
            attempt=attempt.info.number,
            digest=records.manifest_digest(files),
            files=files,
            fingerprint=recipe.fingerprint,
            payload=recipe.payload,
            inputs=tuple(context.inputs_read()),
            **records.describe_code(recipe),
            provenance=records.provenance(),
            run_id=attempt.info.run_id,
            started=attempt.info.started,
            ended=time.time(),
            attempts=tuple(asdict(info) for info in self.attempts(recipe)[:-1]),
            summary=checked,
            plots=plots,
        )
        attempt.check()
        self.storage.write(f"{folder}/{RECORD}", record.to_json().encode())
        self.storage.remove(f"{folder}/.work")
        return record


class BuildContext:
    """What a build gets when it runs through a store; see `recipe.Context`."""

    def __init__(
        self,
        *,
        store: Store,
        recipe: Recipe,
        attempt: Attempt,
        placement: Placement,
        on_progress: Progress | None,
        on_log: Log | None,
    ):
        self.store = store
        self.recipe = recipe
        self.attempt = attempt
        self.placement = placement
        self._on_progress = on_progress
        self._on_log = on_log
        folder = store.folder(recipe)
        number = f"{attempt.info.number:04d}"
        self._clear_leftovers(folder)
        identity = f"{recipe.fingerprint}-{code_digest(recipe)}"  # what resume may trust
        if store.storage.local:
            self.out = store.storage.full(f"{folder}/{number}")
            self.work = store.storage.full(f"{folder}/.work/{identity}")
        else:
            self.out = tempfile.mkdtemp(prefix="marin-out-")
            self.work = os.path.join(store.cache, "work", folder, identity)
        os.makedirs(self.out, exist_ok=True)
        os.makedirs(self.work, exist_ok=True)

    def path(self, recipe: Recipe) -> str:
        return self._input(recipe)[1]

    def result(self, recipe: Recipe) -> Mapping[str, Any]:
        return self._input(recipe)[0].summary.numbers

    def record(self, recipe: Recipe) -> Record:
        return self.store.read_input(recipe)[0]

    def progress(
        self, done: float, total: float | None = None, unit: str = "documents", **metrics: float
    ) -> None:
        self.attempt.alive()
        if self._on_progress:
            self._on_progress(done, total, unit, metrics)

    def log(self, message: str) -> None:
        self.attempt.log(message)
        if self._on_log:
            self._on_log(message)

    def inputs_read(self) -> list[records.Input]:
        """The inputs with the digests that they have now."""
        return [
            records.Input(address=item.address, digest=self.record(item).digest)
            for item in self.recipe.inputs
        ]

    def _input(self, recipe: Recipe) -> tuple[Record, str]:
        if recipe.address not in {item.address for item in self.recipe.inputs}:
            raise StageError(
                "error", f"{self.recipe.address} reads {recipe.address}, which is not a field of it"
            )
        return self.store.read_input(recipe)

    def _clear_leftovers(self, folder: str) -> None:
        """Removes what failed attempts left, and all but the current files of a `dev` artifact."""
        try:
            record = self.store.record(self.recipe)
        except StageError:  # it cannot be read, and this build was forced
            record = None
        current = {f"{record.attempt:04d}"} if record else set()
        for name in self.store.storage.names(folder):
            if name.isdigit() and name not in current:
                self.store.storage.remove(f"{folder}/{name}")


def damage_message(where: str, recipe: Recipe, damage: list[str]) -> str:
    return (
        f"{recipe.address} at {where} is damaged: {'; '.join(damage[:5])}; restore the files, or "
        f"build it again with `marin build {recipe.address} --run --force`"
    )


def _checked_summary(recipe: Recipe, summary: Summary) -> Summary:
    """The summary as plain JSON values; raises StageError for one that cannot be recorded."""
    if not isinstance(summary, Summary):
        raise StageError(
            "error",
            f"the build of {recipe.address} returned a {type(summary).__name__}; return a Summary",
        )
    summary = records.plain_summary(recipe.address, summary)
    counts = summary.counts
    if counts is not None and counts.balance:
        raise CountsError(
            "error",
            f"{recipe.address}: counts do not balance: read {counts.read}, kept {counts.kept}, "
            f"dropped {dict(counts.dropped)}, errors {dict(counts.errors)}: {counts.balance} "
            f"{counts.unit} are unaccounted for",
        )
    if counts is not None and counts.kept == 0:
        raise CountsError(
            "bad_input",
            f"{recipe.address} kept none of {counts.read} {counts.unit}: dropped "
            f"{dict(counts.dropped)}, errors {dict(counts.errors)}; loosen the rule that dropped "
            "them, or look at the input",
        )
    return summary


def _write_plots(out: str, summary: Summary) -> dict[str, str]:
    """Writes the plots as files of the artifact; returns {title: file}."""
    names = {}
    for number, (title, svg) in enumerate(summary.plots.items()):
        name = f"plots/{number:02d}.svg"
        path = Path(out, name)
        path.parent.mkdir(exist_ok=True)
        path.write_text(svg)
        names[title] = name
    return names
