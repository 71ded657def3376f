"""What the store needs of a place that keeps bytes, and which places provide it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from fsspec.core import split_protocol


@dataclass(frozen=True)
class Content:
    """The bytes of a file, and the version that `Backend.replace` compares."""

    data: bytes
    version: str


@dataclass(frozen=True)
class Entry:
    """A file found below a folder; `modified` is in seconds since 1970."""

    path: str
    bytes: int
    modified: float


@dataclass(frozen=True)
class Upload:
    """An upload in parts that was begun and neither finished nor given up."""

    path: str
    id: str
    bytes: int
    started: float  # seconds since 1970


class Backend(Protocol):
    """The operations that the store's promises rest on; paths are relative to the prefix.

    None of them answers from a cache, follows a pattern or renames a remote file. Whatever writes a
    file shows it whole or not at all.
    """

    root: str  # within the filesystem or bucket
    local: bool  # files are local files
    errors: tuple[type[Exception], ...]  # what the client raises, besides OSError

    def transient(self, error: Exception) -> bool:
        """Whether one of `errors` says "too many requests", "slow down" or "try again"."""
        ...

    def read(self, path: str) -> Content | None: ...

    def write(self, path: str, data: bytes) -> None: ...

    def create(self, path: str, data: bytes) -> str | None:
        """Writes a new file and returns its version; None, and nothing written, if it is there."""
        ...

    def replace(self, path: str, data: bytes, version: str) -> str | None:
        """Writes only over this very version; returns the new one, or None and writes nothing."""
        ...

    def size(self, path: str) -> int | None: ...

    def names(self, path: str) -> list[str]:
        """Names directly in a folder, in any order; none when there is no such folder."""
        ...

    def walk(self, path: str) -> Iterator[Entry]:
        """All files below a folder, with paths relative to it."""
        ...

    def remove(self, path: str) -> None:
        """Removes a file, or a folder with all it holds; nothing happens if there is none."""
        ...

    def upload(self, path: str, source: str) -> None: ...

    def download(self, path: str, target: str) -> None: ...

    def unfinished(self, path: str) -> list[Upload]:
        """Uploads below a folder that were begun and not finished, as far as can be listed."""
        ...

    def abort(self, upload: Upload) -> None: ...

    def regions(self) -> tuple[str, ...]:
        """Where the bytes lie, as the provider names it; nothing for a disk or memory."""
        ...


def opener(prefix: str) -> Callable[[], Backend]:
    """Returns what opens the backend of a prefix, without importing its client yet.

    Raises ValueError for a protocol that lacks the atomic operations of `Backend`.
    """
    protocol, rest = split_protocol(prefix)
    if protocol is not None and not rest.strip("/"):
        raise ValueError(f"prefix={prefix!r} names no bucket; write {protocol}://bucket/path")
    if protocol in (None, "file", "local"):
        from marin_dagster.backends.local import LocalBackend

        return partial(LocalBackend, prefix)
    if protocol == "memory":
        from marin_dagster.backends.memory import MemoryBackend

        return partial(MemoryBackend, prefix)
    if protocol in ("gs", "gcs"):
        return partial(_google, prefix)
    if protocol in ("s3", "s3a"):
        return partial(_s3, prefix)
    raise ValueError(
        f"prefix={prefix!r} cannot be opened: {protocol}:// has no atomic create and compare-and-"
        "swap that this store knows; set MARIN_PREFIX to a folder or a gs:// or s3:// URL"
    )


def bucket_of(prefix: str) -> tuple[str, str]:
    """Splits `gs://bucket/some/path` into the bucket and the path within."""
    bucket, _, root = split_protocol(prefix)[1].partition("/")
    return bucket, root.strip("/")


def _google(prefix: str) -> Backend:
    from google.auth.exceptions import GoogleAuthError

    from marin_dagster.backends.gcs import GoogleBackend

    try:
        return GoogleBackend(prefix)
    except GoogleAuthError as error:
        raise ValueError(
            f"prefix={prefix!r} cannot be opened: {error}; log in with `gcloud auth "
            "application-default login`, or set GOOGLE_APPLICATION_CREDENTIALS"
        ) from error


def _s3(prefix: str) -> Backend:
    try:
        from marin_dagster.backends.s3 import S3Backend
    except ImportError as error:
        raise ValueError(
            f"prefix={prefix!r} cannot be opened: {error}; pip install 'marin-dagster[s3]', or set "
            "MARIN_PREFIX to a folder"
        ) from error
    return S3Backend(prefix)
