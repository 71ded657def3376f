"""Turns a finished build into its record: what was made, from what, by which code, and how."""

import dataclasses
import functools
import getpass
import hashlib
import json
import math
import os
import platform
import shlex
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from marin_dagster.code import code_digests, library_versions
from marin_dagster.recipe import Counts, Recipe, StageError, Summary

FORMAT = 1
RECORD = ".artifact.json"
PARTS = {
    **dict.fromkeys(("payload", "code", "libraries", "provenance", "summary"), dict),
    **dict.fromkeys(("files", "inputs", "attempts"), list),
}


@dataclass(frozen=True, kw_only=True)
class File:
    """One line of a manifest; `path` is relative to the artifact's data folder."""

    path: str
    bytes: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Input:
    """An artifact that was read, and the digest of what it held then."""

    address: str
    digest: str


@dataclass(frozen=True, kw_only=True)
class Record:
    """Everything that is known of an artifact; written last, as `.artifact.json`."""

    format: int = FORMAT
    address: str
    attempt: int  # the files lie in the folder of this number
    digest: str  # of the manifest: equal content has an equal digest
    files: tuple[File, ...]
    fingerprint: str
    payload: Mapping[str, Any]
    inputs: tuple[Input, ...]
    code: Mapping[str, str]  # module: digest
    libraries: Mapping[str, str]  # distribution: version
    provenance: Mapping[str, Any]  # git, command, host, user, python, container image
    run_id: str | None
    started: float  # seconds since 1970
    ended: float
    attempts: tuple[Mapping[str, Any], ...]  # all tries at this address, failures included
    summary: Summary = field(repr=False)
    plots: Mapping[str, str] = field(default_factory=dict)  # title: file
    cost: Mapping[str, float] = field(default_factory=dict)  # as Recipe.cost gave it
    adopted: Mapping[str, Any] | None = None  # source, when, by: data that no build of ours made

    @property
    def size_bytes(self) -> int:
        """Size of the artifact's files."""
        return sum(file.bytes for file in self.files)

    @property
    def seconds(self) -> float:
        """How long the build took."""
        return self.ended - self.started

    def to_json(self) -> str:
        data = dataclasses.asdict(self)
        data["summary"].pop("plots")  # they are files of the artifact
        return json.dumps(data, indent=1)

    @classmethod
    def from_json(cls, text: str | bytes) -> "Record":
        """Reads a record; raises ValueError when it is not one, or is of a later format."""
        data = json.loads(text)
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            found = data.get("format") if isinstance(data, dict) else None
            raise ValueError(f"format={found!r} of the record is not {FORMAT}")
        for name, kind in PARTS.items():
            if not isinstance(data.get(name), kind):
                raise ValueError(f"{name} of the record is no {kind.__name__}")
        data["summary"] = summary_from(data["summary"])
        data["files"] = tuple(File(**file) for file in data["files"])
        data["inputs"] = tuple(Input(**item) for item in data["inputs"])
        data["attempts"] = tuple(data["attempts"])
        try:
            return cls(**data)
        except TypeError as error:
            raise ValueError(f"the record lacks or has unknown fields: {error}") from error


def summary_from(data: Mapping[str, Any]) -> Summary:
    """Reads a summary back from JSON."""
    counts = data["counts"]
    return Summary(**{**data, "counts": None if counts is None else Counts(**counts)})


def manifest(folder: str) -> tuple[File, ...]:
    """Lists the files below a local folder with their SHA-256; dot-files are left out.

    Raises StageError for what a record cannot promise: links, and names that are not Unicode.
    """
    files = []
    for root, folders, names in os.walk(folder):
        kept = sorted(name for name in folders if not name.startswith("."))
        folders[:] = kept
        for name in [*kept, *sorted(names)]:
            path = Path(root, name)
            relative = path.relative_to(folder).as_posix()
            if name.startswith("."):
                continue
            if path.is_symlink():
                raise StageError("error", f"{relative!r} is a link; write the file itself")
            if any("\udc80" <= letter <= "\udcff" for letter in relative):
                raise StageError("error", f"the name {relative!r} is not Unicode; rename the file")
            if path.is_file():
                size = path.stat().st_size
                files.append(File(path=relative, bytes=size, sha256=sha256_of(path)))
    return tuple(sorted(files, key=lambda file: file.path))


def sha256_of(path: str | Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def manifest_digest(files: tuple[File, ...]) -> str:
    """Sixteen hex digits that name the content of a manifest."""
    text = "\n".join(f"{file.sha256} {file.path}" for file in files)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def describe_code(recipe: Recipe) -> dict[str, Any]:
    return {"code": code_digests(recipe), "libraries": library_versions(recipe)}


def provenance(container_image: str | None, region: Mapping[str, Any] | None) -> dict[str, Any]:
    """Says who runs this, where, and from which commit."""
    return {
        "git": _git(),
        "command": shlex.join(sys.orig_argv),
        "host": socket.gethostname(),
        "user": user(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "container_image": container_image,
        "region": region,
    }


def user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # no entry for the user id, as in many containers
        return str(os.getuid())


@functools.lru_cache(maxsize=1)
def _git() -> dict[str, Any] | None:
    """Commit and dirty flag of the checkout that this code runs from; None outside of one.

    Asked once: a process goes on with the code that it has loaded.
    """
    where = Path(__file__).resolve().parent

    def ask(*words: str) -> str:
        done = subprocess.run(
            ["git", "-C", str(where), *words],
            capture_output=True,
            text=True,
            timeout=20,
            check=True,
        )
        return done.stdout.strip()

    try:
        return {"commit": ask("rev-parse", "HEAD"), "dirty": bool(ask("status", "--porcelain"))}
    except (OSError, subprocess.SubprocessError):
        return None


def write_plots(out: str, summary: Summary) -> dict[str, str]:
    """Writes the plots as files of the artifact; returns {title: file}."""
    names = {}
    for number, (title, svg) in enumerate(summary.plots.items()):
        name = f"plots/{number:02d}.svg"
        path = Path(out, name)
        path.parent.mkdir(exist_ok=True)
        path.write_text(svg)
        names[title] = name
    return names


def plain_summary(address: str, summary: Summary) -> Summary:
    """A summary of plain JSON values, without its plots, which are files.

    NumPy and JAX scalars become numbers, and numbers that JSON lacks become None. Raises StageError
    that names the field of a value that has no place in JSON.
    """
    parts = {}
    for name in ("numbers", "tables", "notes"):
        try:
            parts[name] = plain(getattr(summary, name))
        except (TypeError, ValueError) as error:
            raise StageError("error", f"{name} of {address} cannot be recorded: {error}") from error
    return Summary(counts=summary.counts, **parts)


def plain(value: Any) -> Any:
    """Turns what a build returned into what JSON holds."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if not isinstance(value, (str, bool, int, float, type(None))):
        if getattr(value, "ndim", None) != 0 or not hasattr(value, "item"):
            raise TypeError(f"{value!r:.100} is a {type(value).__name__}, not a number or a text")
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value
