"""Turns what failed builds, killed writers and other laboratories left into room, or artifacts."""

import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path

from fsspec.core import url_to_fs

from marin_dagster import record as records
from marin_dagster.attempt import ATTEMPTS, RUNNING, AttemptInfo, attempts_of, read_attempt
from marin_dagster.backends.local import TEMPORARY
from marin_dagster.context import BuildContext, still_read
from marin_dagster.recipe import Recipe, StageError, Summary
from marin_dagster.record import RECORD, Record
from marin_dagster.store import Outcome, Store

QUIET_SECONDS = 3_600.0  # nobody writes one small file, or pauses within a download, for so long


@dataclass(frozen=True, kw_only=True)
class Leftover:
    """Something that no artifact and no live attempt needs."""

    what: str
    where: str
    bytes: int
    remove: Callable[[], None]


def leftovers(store: Store, pattern: str = "*") -> Iterator[Leftover]:
    """Finds what can be removed of the addresses that match a shell pattern, and in the cache.

    Looks at what lies under the prefix, not at the catalog, so that renamed recipes count too.
    Raises ValueError for a pattern that matches nothing there.
    """
    folder = None
    for folder in _folders(store, pattern):
        # Attempts first: one that commits in between is then a running one.
        attempts = {info.number: info for info in attempts_of(store.storage, folder)}
        try:
            record = _record(store, folder)
        except ValueError:
            continue  # whose files are the artifact's cannot be known
        yield from _attempt_files(store, folder, attempts, record)
        yield from _uploads(store, folder, attempts)
        if record is not None and not _live(store, folder):
            yield from _work(store, folder)
        yield from _outputs(store, folder)
        if store.storage.local:
            for place in (folder, f"{folder}/{ATTEMPTS}"):
                yield from _parts(Path(store.storage.full(place)), "*", "unfinished write")
    if folder is None and pattern != "*":
        raise ValueError(
            f"pattern={pattern!r} matches nothing under {store.prefix}; give an address "
            "stage/name@version, or a pattern in quotes such as 'checkpoints/*@dev'"
        )
    yield from _parts(Path(store.cache), "**/*", "unfinished download")


def verify(store: Store, recipe: Recipe) -> tuple[Record | None, list[str]]:
    """Reads every file of an artifact again, where it lies; returns its record and the damage.

    No record and no damage: it is not complete.
    """
    try:
        record = store.record(recipe)
    except StageError as error:
        return None, [error.message]
    if record is None:
        return None, []
    damage = store.damage(recipe, record, checksums=False)
    base = f"{store.folder(recipe)}/{record.attempt:04d}"
    return record, damage or [
        f"{file.path} has other content than its record says (SHA-256)"
        for file in record.files
        if store.storage.sha256(f"{base}/{file.path}", store.cache) != file.sha256
    ]


def adopt(store: Store, recipe: Recipe, source: str, *, force: bool = False) -> Outcome:
    """Copies existing data in as the artifact of a recipe, with a record that says so.

    `source` is a folder or any fsspec URL of one. Raises ValueError when there is no file in it, or
    when the artifact is complete and `force` is not given.
    """
    if not force and store.record(recipe) is not None:
        raise ValueError(
            f"{recipe.address} is complete at {store.url(recipe)}; use --force to replace it by "
            f"{source}"
        )
    files = source_files(source)
    note = {"source": source, "when": time.time(), "by": records.user()}

    def copy(context: BuildContext) -> Summary:
        system, _ = url_to_fs(source)
        size = 0
        for number, (path, name) in enumerate(sorted(files.items()), 1):
            target = Path(context.out, name)
            target.parent.mkdir(parents=True, exist_ok=True)
            system.get_file(path, str(target))
            size += target.stat().st_size
            context.progress(number, len(files), unit="files")
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(note["when"]))
        text = f"from {source} on {when} by {note['by']}; this project did not make the data"
        return Summary(numbers={"files": len(files), "bytes": size}, notes={"adopted": text})

    return store.build(recipe, work=copy, force=True, adopted=note)


def source_files(source: str) -> dict[str, str]:
    """Finds the files to adopt: {path in its file system: name in the artifact}; no dot-files."""
    system, root = url_to_fs(source)
    root = root.rstrip("/")
    found = {}
    for path in system.find(root):
        name = path[len(root) :].lstrip("/")
        if name and not any(part.startswith(".") for part in name.split("/")):
            found[path] = name
    if not found:
        raise ValueError(
            f"--from {source!r} holds no files to adopt; give a folder, or the URL of one"
        )
    return found


def _folders(store: Store, pattern: str) -> Iterator[str]:
    """`stage/name/version` of everything under the prefix whose address matches."""
    names = store.storage.names
    for stage in names(""):
        for name in names(stage):
            for version in names(f"{stage}/{name}"):
                if fnmatchcase(f"{stage}/{name}@{version}", pattern):
                    yield f"{stage}/{name}/{version}"


def _record(store: Store, folder: str) -> Record | None:
    content = store.storage.read(f"{folder}/{RECORD}")
    try:
        return None if content is None else Record.from_json(content)
    except (KeyError, TypeError) as error:
        raise ValueError(str(error)) from error


def _attempt_files(
    store: Store, folder: str, attempts: dict[int, AttemptInfo], record: Record | None
) -> Iterator[Leftover]:
    for name in store.storage.names(folder):
        if not (name.isascii() and name.isdigit()) or (
            record is not None and int(name) == record.attempt
        ):
            continue
        entries = store.storage.walk(f"{folder}/{name}")
        info = attempts.get(int(name))
        if info is not None and (not info.over or still_read(info, record)):
            continue
        newest = max((entry.modified for entry in entries), default=time.time())
        if info is None and time.time() - newest < QUIET_SECONDS:
            continue
        what = "an attempt without a file of its own" if info is None else _ending(info)
        yield Leftover(
            what=f"files of {what}",
            where=store.storage.url(f"{folder}/{name}"),
            bytes=sum(entry.bytes for entry in entries),
            remove=partial(_remove_attempt, store, folder, int(name)),
        )


def _remove_attempt(store: Store, folder: str, number: int) -> None:
    """Removes the files of an attempt, unless one of that number has begun meanwhile."""
    info = read_attempt(store.storage, folder, number)
    if info is None or info.over:
        store.storage.remove(f"{folder}/{number:04d}")


def _live(store: Store, folder: str) -> bool:
    """Whether somebody builds there now."""
    found = attempts_of(store.storage, folder)
    return any(info.state == RUNNING and not info.over for info in found)


def _unless_live(store: Store, folder: str, remove: Callable[[], None]) -> None:
    if not _live(store, folder):
        remove()


def _ending(info: AttemptInfo) -> str:
    state = "killed" if info.state == RUNNING else info.reason or "overwritten"
    return f"attempt {info.number} ({state})"


def _uploads(store: Store, folder: str, attempts: dict[int, AttemptInfo]) -> Iterator[Leftover]:
    for upload in store.storage.unfinished(folder):
        number = upload.path[len(folder) + 1 :].partition("/")[0]
        info = attempts.get(int(number)) if number.isdigit() else None
        quiet = time.time() - upload.started > QUIET_SECONDS
        if info.over if info is not None else quiet:
            yield Leftover(
                what="unfinished upload",
                where=store.storage.url(upload.path),
                bytes=upload.bytes,
                remove=partial(store.storage.abort, upload),
            )


def _work(store: Store, folder: str) -> Iterator[Leftover]:
    if store.storage.local:
        entries = store.storage.walk(f"{folder}/.work")
        if entries:
            yield Leftover(
                what="what a complete artifact was resumed from",
                where=store.storage.url(f"{folder}/.work"),
                bytes=sum(entry.bytes for entry in entries),
                remove=partial(
                    _unless_live, store, folder, partial(store.storage.remove, f"{folder}/.work")
                ),
            )
        return
    path = Path(store.cache, "work", folder)
    if path.exists():
        found = _local("what a complete artifact was resumed from", path)
        yield replace(found, remove=partial(_unless_live, store, folder, found.remove))


def _outputs(store: Store, folder: str) -> Iterator[Leftover]:
    """What killed builds on this machine would have uploaded; the folder names their attempt."""
    for path in Path(store.cache, "out", folder).glob("*-*"):
        number, _, token = path.name.partition("-")
        info = read_attempt(store.storage, folder, int(number))
        if info is not None and info.token.startswith(token):
            left = info.over
        else:
            left = time.time() - path.stat().st_mtime > QUIET_SECONDS
        if left:
            yield _local("output of a killed build", path)


def _parts(folder: Path, pattern: str, what: str) -> Iterator[Leftover]:
    for path in folder.glob(f"{pattern}{TEMPORARY}"):
        if time.time() - path.lstat().st_mtime > QUIET_SECONDS:
            yield _local(what, path)


def _local(what: str, path: Path) -> Leftover:
    files = [path] if path.is_file() else [item for item in path.rglob("*") if item.is_file()]
    return Leftover(
        what=what,
        where=str(path),
        bytes=sum(os.path.getsize(file) for file in files),
        remove=partial(_remove_local, path),
    )


def _remove_local(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
