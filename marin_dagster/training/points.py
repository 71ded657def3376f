"""Turns a folder with a saved state into a resume point that proves itself, and finds the newest.

A point is a folder `step-NNNNNNNN-attempt-NNNN` of a root. It holds `state/` (the arrays),
`facts.json` (what else a resume needs) and, written last, `manifest.json` with the checksum of
every file and its own. It is written beside its place under a name that begins with a dot, read
back, and renamed. Who lists a root sees whole points only; a copy that lost its manifest is no
point, and nobody deletes what does not say that it is theirs.
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

FORMAT = "marin-dagster resume point 2"
MANIFEST, FACTS, STATE = "manifest.json", "facts.json", "state"
NAME = re.compile(r"step-([0-9]{8,})-attempt-([0-9]{4,})")
TEMPORARY, PERMANENT = "temporary", "permanent"


@dataclass(frozen=True, order=True)
class Place:
    """A folder that may be a resume point; the last attempt that got somewhere comes last."""

    attempt: int
    step: int
    folder: str

    @classmethod
    def of(cls, root: str, step: int, attempt: int) -> "Place":
        return cls(attempt, step, os.path.join(root, f"step-{step:08d}-attempt-{attempt:04d}"))

    @property
    def draft(self) -> str:
        """Where it is written."""
        root, name = os.path.split(self.folder)
        return os.path.join(root, f".{name}")

    @property
    def state(self) -> str:
        return os.path.join(self.folder, STATE)


def places(roots: Sequence[str]) -> list[Place]:
    """Lists what may be a resume point in any of the roots, newest first."""
    found = []
    for root in roots:
        for name in os.listdir(root) if os.path.isdir(root) else ():
            match = NAME.fullmatch(name)
            if match:
                found.append(Place(int(match[2]), int(match[1]), os.path.join(root, name)))
    return sorted(found, reverse=True)


def newest(
    roots: Sequence[str], identity: str, log: Callable[[str], None], before: int | None = None
) -> Place | None:
    """Finds the newest point of this identity that verifies, over all roots.

    Newest is the highest step of the last attempt, as in the metrics: nothing is returned to that
    an attempt left behind when it went on from before it. With `before`, only points of lower
    steps. Says which ones were skipped, why, and how many steps that costs.
    """
    skipped: list[tuple[int, str]] = []
    found = None
    candidates = places(roots)
    line = _line(candidates, identity)
    for place in candidates:
        if (before is not None and place.step >= before) or not _is_on(line, place):
            continue
        why = fault(place.folder, identity)
        if why is None:
            found = place
            break
        skipped.append((place.step, f"{place.folder} {why}"))
    for step, why in skipped:
        lost = step - (found.step if found else 0)
        log(f"resume point skipped, {max(lost, 0)} steps lost because {why}")
    return found


def permanent(roots: Sequence[str], identity: str) -> list[Place]:
    """The permanent points of this identity that the run came by, the first step first."""
    candidates = places(roots)
    line = _line(candidates, identity)
    kept = {}
    for place in candidates:
        manifest = read_manifest(place.folder) or {}
        ours = manifest.get("identity") == identity and manifest["kind"] == PERMANENT
        if ours and _is_on(line, place):
            kept.setdefault(place.step, place)
    return [kept[step] for step in sorted(kept)]


def publish(
    place: Place, identity: str, facts: Mapping[str, Any], about: Mapping[str, Any]
) -> None:
    """Makes a draft whose `state/` is complete a point: facts, manifest, read back, rename.

    `about` goes into the manifest: `kind`, `lineage` (pairs of an attempt and the step that it went
    on from, the oldest first), `arrays` (type and shape by name). Raises OSError when the files
    read back differ from those written.
    """
    draft = place.draft
    _write(os.path.join(draft, FACTS), dict(facts))
    manifest = {
        "format": FORMAT,
        "identity": identity,
        "step": place.step,
        "attempt": place.attempt,
        **about,
        "files": {name: _entry(os.path.join(draft, name)) for name in _files(draft)},
    }
    _write(os.path.join(draft, MANIFEST), {**manifest, "digest": _digest(manifest)})
    why = fault(draft, identity)
    if why is not None:
        raise OSError(f"{draft} {why} right after it was written")
    shutil.rmtree(place.folder, ignore_errors=True)  # of this step and attempt, and not verified
    os.rename(draft, place.folder)
    _sync_folder(os.path.dirname(place.folder))


def fault(folder: str, identity: str) -> str | None:
    """Why a folder cannot be resumed from; None when every file is what its manifest says."""
    manifest = read_manifest(folder)
    if manifest is None:
        return "has no manifest that can be read"
    if manifest["identity"] != identity:
        return f"is of another recipe (fingerprint {manifest['identity']}, this one is {identity})"
    for name, entry in manifest["files"].items():
        path = os.path.join(folder, name)
        if not os.path.isfile(path):
            return f"lacks {name}"
        try:
            if _entry(path) != entry:
                return f"has a damaged {name}"
        except OSError as error:
            return f"has an unreadable {name} ({error})"
    return None


def read_manifest(folder: str) -> dict[str, Any] | None:
    """The manifest of a point; None when there is none, or it is not whole."""
    try:
        with open(os.path.join(folder, MANIFEST), encoding="utf-8") as file:
            manifest = json.load(file)
    except (OSError, ValueError):
        return None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        return None
    digest = manifest.pop("digest", None)
    return manifest if digest == _digest(manifest) else None


def read_facts(place: Place) -> dict[str, Any]:
    with open(os.path.join(place.folder, FACTS), encoding="utf-8") as file:
        return json.load(file)


def prune(root: str, identity: str, kept: int) -> None:
    """Removes the temporary points of this identity in a root but the newest of the last attempt's.

    What has no manifest, is permanent, or belongs to another recipe stays.
    """
    found = places([root])
    line, left = _line(found, identity), kept
    for place in found:
        manifest = read_manifest(place.folder)
        if not manifest or manifest["identity"] != identity or manifest["kind"] != TEMPORARY:
            continue
        if _is_on(line, place) and left:
            left -= 1
        else:
            _remove(place)


def sweep(root: str) -> None:
    """Removes the drafts that a killed attempt left in its own root."""
    for name in os.listdir(root) if os.path.isdir(root) else ():
        if name.startswith(".") and NAME.fullmatch(name[1:]):
            shutil.rmtree(os.path.join(root, name))


def _line(candidates: Sequence[Place], identity: str) -> list[list[int]]:
    """The lineage of the newest point of an identity."""
    for place in candidates:
        manifest = read_manifest(place.folder)
        if manifest and manifest["identity"] == identity:
            return manifest["lineage"]
    return []


def _is_on(line: Sequence[Sequence[int]], place: Place) -> bool:
    """Whether no later attempt of this lineage went on from before a place."""
    return all(place.step <= start for attempt, start in line if attempt > place.attempt)


def _remove(place: Place) -> None:
    """Takes a point out of sight before its files go, so that nobody sees half of it."""
    shutil.rmtree(place.draft, ignore_errors=True)
    os.rename(place.folder, place.draft)
    shutil.rmtree(place.draft)


def _files(folder: str) -> Iterator[str]:
    for parent, _, names in sorted(os.walk(folder)):
        for name in sorted(names):
            path = os.path.relpath(os.path.join(parent, name), folder)
            if path != MANIFEST:
                yield path


def _entry(path: str) -> dict[str, Any]:
    with open(path, "rb") as file:
        checksum = hashlib.file_digest(file, "sha256").hexdigest()
    return {"bytes": os.path.getsize(path), "sha256": checksum}


def _digest(manifest: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _write(path: str, value: Mapping[str, Any]) -> None:
    with open(path, "w", encoding="utf-8") as file:
        json.dump(value, file, indent=1, sort_keys=True)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: str) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
