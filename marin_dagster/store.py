"""Turns recipes into artifacts under a prefix: complete with a record, or not there at all."""

import hashlib
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from marin_dagster import record as records
from marin_dagster.attempt import (
    LOG_TAIL_LINES,
    RUNNING,
    Attempt,
    AttemptInfo,
    attempts_of,
    last_attempt,
    log_path,
    process_is_gone,
    read_attempt,
    start_attempt,
)
from marin_dagster.context import BuildContext, Log, Progress
from marin_dagster.plan import DAMAGED, REUSE, Judgement, describe, drift_behind, judge
from marin_dagster.publish import refuse_unpublished
from marin_dagster.recipe import Placement, Recipe, StageError, Summary, walk
from marin_dagster.record import RECORD, File, Record
from marin_dagster.region import region_note
from marin_dagster.storage import Storage

CHECKSUM_LIMIT_BYTES = 4 * 2**30  # larger inputs are checked by size alone when they are read

Work = Callable[[BuildContext], Summary]


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


@dataclass(frozen=True)
class _Start:
    """A build that may begin."""

    attempt: Attempt
    judgement: Judgement
    region: Mapping[str, Any] | None
    forced: bool


class Store:
    """The artifacts under one prefix: a folder, `memory://`, `gs://` or `s3://`.

    `drift="error"` refuses to reuse a fixed version whose recipe, code or inputs have changed
    since. A writer that is silent for `stale_seconds` loses its address. `region` is where this
    process computes; a bucket elsewhere is refused unless `cross_region` is true.
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
        region: str | None = None,
        cross_region: bool = False,
        container_image: str | None = None,
    ):
        if drift not in ("warn", "error"):
            raise ValueError(f"drift={drift!r} is neither 'warn' nor 'error'; set MARIN_DRIFT")
        self.storage = Storage(prefix)
        self.drift = drift
        self._region = region
        self._cross_region = cross_region
        self._container_image = container_image
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
        listed = {entry.path: entry.bytes for entry in self.storage.walk(base)}
        found = []
        for file in record.files:
            if listed.get(file.path) == file.bytes:
                continue
            size = self.storage.size(f"{base}/{file.path}")  # a listing is not asked twice
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
            if not self._is_sound(recipe, record, file, Path(local, file.path))
        ]

    def _is_sound(self, recipe: Recipe, record: Record, file: File, local: Path) -> bool:
        if records.sha256_of(local) == file.sha256:
            return True
        if self.storage.local:
            return False
        local.unlink()  # perhaps only the copy is spoilt
        self.localize(recipe, record)
        return records.sha256_of(local) == file.sha256

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
        missing = {
            file.path: file.bytes
            for file in record.files
            if not os.path.exists(os.path.join(folder, file.path))
        }
        try:
            self.storage.download(base, folder, missing)
        except FileNotFoundError as error:
            message = damage_message(self.url(recipe), recipe, [f"{error} is missing"])
            raise StageError("bad_input", message) from error
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
        adopted: Mapping[str, Any] | None = None,
        inputs: Mapping[str, tuple[Record, str]] | None = None,
    ) -> Outcome:
        """Makes the artifact unless it is there: the one way to build.

        `work` runs the recipe elsewhere; by default `recipe.build` runs here. When another process
        builds the same address, waits for it and reuses what it made. `adopted` says where data
        comes from that `work` only copies: inputs may then be absent, and no code made it.
        `inputs` are what was read if that is known already, as when a build publishes on its way.

        Raises StageError when an input is missing or damaged, when the store cannot be written,
        when drift is refused, and whatever the recipe raises.
        """
        say = log or (lambda message: None)
        known = adopted is not None or inputs is not None
        found = self._admit(recipe, force, run_id, say, known)
        if isinstance(found, Outcome):
            return found
        attempt, judgement, region = found.attempt, found.judgement, found.region
        with attempt:
            before = self.storage.read_version(f"{self.folder(recipe)}/{RECORD}")
            again = judge(self, recipe, force=found.forced)
            if again.action == REUSE:  # finished by another process between the look and the start
                attempt.log("another process had finished this artifact; reused")
                return self._reuse(recipe, again)
            say(f"{recipe.address}: attempt {attempt.info.number}, {describe(judgement)}")
            context = BuildContext(
                store=self,
                recipe=recipe,
                inputs=inputs or self._inputs(recipe, complete_only=adopted is not None),
                attempt=attempt,
                placement=placement or Placement(),
                on_progress=progress,
                on_log=log,
            )
            if region and region.get("note"):
                context.log(region["note"])
            try:
                summary = (work or (lambda ctx: ctx.recipe.build(ctx)))(context)
                record = self._describe(context, summary, region, adopted)
                committed = self._commit(context, record, before.version if before else None)
            finally:
                context.close()
            if not committed:
                return self._overtaken(recipe)
            with suppress(StageError):  # another attempt has begun, and works there now
                attempt.check()
                context.forget_work()
        return Outcome(record=record, judgement=judgement)

    def _admit(
        self, recipe: Recipe, forced: bool, run_id: str | None, say: Log, known: bool
    ) -> "Outcome | _Start":
        """Waits until the artifact is complete, or until this build holds its address.

        `known`: what it is made from need not be looked at.
        """
        while True:
            judgement = judge(self, recipe, force=forced)
            if judgement.action == REUSE:
                self._refuse_drift(recipe, judgement)
                self._refuse_drift_behind(recipe)
                return self._reuse(recipe, judgement)
            if judgement.action == DAMAGED:
                raise StageError(
                    "bad_input", damage_message(self.url(recipe), recipe, [judgement.reason])
                )
            region = region_note(self.storage, self._region, allow=self._cross_region)
            if not known:
                for item in recipe.inputs:
                    self.read_input(item)
                self._refuse_drift_behind(recipe)
            path = f"{self.folder(recipe)}/{RECORD}"
            before = self.storage.read(path)
            attempt = self._start(recipe, run_id)
            if isinstance(attempt, Attempt):
                return _Start(attempt, judgement, region, forced)
            self._wait(recipe, attempt, say)
            if self.storage.read(path) != before and not known:
                forced = False  # what it waited for is as new as what it would make

    def _inputs(self, recipe: Recipe, *, complete_only: bool) -> dict[str, tuple[Record, str]]:
        """Record and local folder of each input, as they are now, by address."""
        return {
            item.address: self.read_input(item)
            for item in recipe.inputs
            if not complete_only or self.record(item) is not None
        }

    def _reuse(self, recipe: Recipe, judgement: Judgement) -> Outcome:
        record = self.record(recipe)
        if record is None:
            raise StageError(
                "error",
                f"the record of {recipe.address} at {self.url(recipe)} was removed while it was "
                "looked at; build it again",
            )
        return Outcome(record=record, judgement=judgement)

    def _overtaken(self, recipe: Recipe) -> Outcome:
        """What became of a build whose commit came too late."""
        judgement = judge(self, recipe)
        if judgement.action == REUSE:
            return self._reuse(recipe, judgement)
        raise StageError(
            "killed",
            f"another attempt wrote the record of {recipe.address} at {self.url(recipe)} while "
            "this one was silent; nothing of this one is kept; build it again if you want it",
        )

    def _start(self, recipe: Recipe, run_id: str | None) -> Attempt | AttemptInfo:
        folder = self.folder(recipe)
        try:
            taken = [
                int(name)
                for name in self.storage.names(folder)
                if name.isascii() and name.isdigit()
            ]
            return start_attempt(
                self.storage,
                folder,
                fingerprint=recipe.fingerprint,
                run_id=run_id,
                heartbeat_seconds=self._heartbeat_seconds,
                is_stale=self._is_stale,
                above=max([0, self.recorded_attempt(recipe), *taken]),
            )
        except OSError as error:  # read-only file system, no space, a bucket that refuses
            raise self._unwritable(error) from error

    def recorded_attempt(self, recipe: Recipe) -> int:
        """Number of the attempt whose files the record names; 0 when there is none to be read."""
        try:
            record = self.record(recipe)
        except StageError:
            return 0
        return record.attempt if record else 0

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
            now = read_attempt(self.storage, self.folder(recipe), other.number)
            if now is None or now.state != RUNNING or self._is_stale(now):
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
        own = {recipe.address, *([recipe.made_by.address] if recipe.made_by else ())}
        if self.drift == "error":
            for address, judgement in drift_behind(self, [recipe], {}).items():
                if address not in own:
                    self._refuse_drift(walk([recipe])[address], judgement)

    def _describe(
        self,
        context: BuildContext,
        summary: Summary,
        region: Mapping[str, Any] | None,
        adopted: Mapping[str, Any] | None,
    ) -> Record:
        """Looks at what the build left, and turns it into a record."""
        recipe, attempt = context.recipe, context.attempt
        attempt.check()
        if adopted is None:
            refuse_unpublished(context)
        checked = _checked_summary(recipe, summary)
        plots = records.write_plots(context.out, summary)
        files = records.manifest(context.out)
        if not files:
            raise StageError("error", f"{recipe.address} wrote no file to {context.out}")
        return Record(
            address=recipe.address,
            attempt=attempt.info.number,
            digest=records.manifest_digest(files),
            files=files,
            fingerprint=recipe.fingerprint,
            payload=recipe.payload,
            inputs=context.inputs_read(),
            **({"code": {}, "libraries": {}} if adopted else records.describe_code(recipe)),
            provenance=records.provenance(self._container_image, region),
            run_id=attempt.info.run_id,
            started=attempt.info.started,
            ended=time.time(),
            attempts=tuple(asdict(info) for info in self.attempts(recipe)[:-1]),
            summary=checked,
            plots=plots,
            cost=recipe.cost(context.input_sizes()),
            adopted=adopted,
        )

    def _commit(self, context: BuildContext, record: Record, before: str | None) -> bool:
        """Uploads the files, then writes the record over the one that was there at the start.

        False when another attempt wrote a record since, whenever this one was paused.
        """
        folder, attempt = self.folder(context.recipe), context.attempt
        if not self.storage.local:
            names = [file.path for file in record.files]
            where = f"{folder}/{record.attempt:04d}"
            self.storage.upload(context.out, where, names, check=attempt.alive)
        attempt.check()
        path, content = f"{folder}/{RECORD}", record.to_json().encode()
        if before is None:
            return self.storage.create(path, content) is not None
        return self.storage.replace(path, content, before) is not None


def damage_message(where: str, recipe: Recipe, damage: list[str]) -> str:
    again = recipe.made_by or recipe
    return (
        f"{recipe.address} at {where} is damaged: {'; '.join(damage[:5])}; restore the files, or "
        f"build it again with `marin build {again.address} --run --force`"
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
