"""Turns a finished build into its record: what was made, from what, by which code, and how."""

import dataclasses
import getpass
import hashlib
import json
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
from marin_dagster.recipe import Counts, Recipe, Summary

FORMAT = 1
RECORD = ".artifact.json"


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
        return json.dumps(data, indent=1, default=_scalar)

    @classmethod
    def from_json(cls, text: str | bytes) -> "Record":
        """Reads a record; raises ValueError when it is not one, or is of a later format."""
        data = json.loads(text)
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            found = data.get("format") if isinstance(data, dict) else None
            raise ValueError(f"format={found!r} of the record is not {FORMAT}")
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
    """Lists the files below a local folder with their SHA-256; dot-files and links are left out."""
    files = []
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            path = Path(root, name)
            if not name.startswith(".") and not path.is_symlink():
                relative = path.relative_to(folder).as_posix()
                files.append(File(path=relative, bytes=path.stat().st_size, sha256=sha256_of(path)))
    return tuple(sorted(files, key=lambda file: file.path))


def sha256_of(path: str | Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def manifest_digest(files: tuple[File, ...]) -> str:
    """Sixteen hex digits that name the content of a manifest."""
    text = "\n".join(f"{file.sha256} {file.path}" for file in files)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def describe_code(recipe: Recipe) -> dict[str, Any]:
    return {"code": code_digests(type(recipe)), "libraries": library_versions(type(recipe))}


def provenance() -> dict[str, Any]:
    """Says who runs this, where, and from which commit."""
    return {
        "git": _git(),
        "command": shlex.join(sys.orig_argv),
        "host": socket.gethostname(),
        "user": _user(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "container_image": os.environ.get("MARIN_CONTAINER_IMAGE"),
    }


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # no entry for the user id, as in many containers
        return str(os.getuid())


def _git() -> dict[str, Any] | None:
    """Commit and dirty flag of the checkout that this code runs from; None outside of one."""
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


def plain(value: Any) -> Any:
    """Turns what a build returned into what JSON holds: NumPy and JAX scalars become numbers."""
    return json.loads(json.dumps(value, default=_scalar))


def _scalar(value: Any) -> Any:
    if hasattr(value, "item"):
        return value.item()
    raise TypeError(f"{value!r} of a {type(value).__name__} cannot be written to a record")
