"""Turns a prefix into the few operations that the store's promises rest on, on any backend."""

import os
import uuid
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from pathlib import Path
from typing import Any

from marin_dagster.backends import Backend, Content, Entry, StorageError, Upload, opener
from marin_dagster.backends.local import TEMPORARY
from marin_dagster.backends.retry import patiently
from marin_dagster.record import sha256_of

PATIENCE_SECONDS = 120.0
PARALLEL_FILES = 8
LARGE_BYTES = 64 * 2**20  # one at a time, so that a cancel need not wait for eight of them


class Storage:
    """A prefix on a disk, in memory, on Google Cloud Storage or S3; paths are relative to it.

    Whatever is written appears whole or not at all. `create` and `replace` have one winner; what
    they write must be unique to the writer, because that is how one whose answer was lost knows
    that it has won. A store that is too busy is asked again, for `patience_seconds` at most.
    """

    def __init__(self, prefix: str, *, patience_seconds: float = PATIENCE_SECONDS):
        self.prefix = prefix.rstrip("/")
        if not self.prefix or "::" in self.prefix:
            raise ValueError(
                f"prefix={prefix!r} is not a folder of its own; set MARIN_PREFIX to a folder or a "
                "URL such as gs://bucket/path"
            )
        self.patience_seconds = patience_seconds
        self._open_backend = opener(prefix if self.prefix.endswith(":") else self.prefix)
        self._opened: tuple[int, Backend] | None = None

    @property
    def local(self) -> bool:
        return self._backend.local

    def full(self, path: str) -> str:
        """The path within the filesystem or bucket; on a local one, an absolute path."""
        root = self._backend.root
        return f"{root}/{path}" if path else root

    def url(self, path: str) -> str:
        """The path as a person would write it elsewhere."""
        return self.full(path) if self.local else f"{self.prefix}/{path}"

    def read(self, path: str) -> bytes | None:
        """The content, or None when there is no such file."""
        found = self.read_version(path)
        return None if found is None else found.data

    def read_version(self, path: str) -> Content | None:
        """The content and its version, or None when there is no such file."""
        return self._call("read", path)

    def write(self, path: str, data: bytes) -> None:
        """Writes over whatever is there: for files that have one writer."""
        self._call("write", path, data)

    def create(self, path: str, data: bytes) -> str | None:
        """Writes a new file and returns its version; None, and nothing written, if it is there."""
        return self._call("create", path, data) or self._own_version(path, data)

    def replace(self, path: str, data: bytes, version: str) -> str | None:
        """Writes only over this version; returns the new one, or None and writes nothing."""
        return self._call("replace", path, data, version) or self._own_version(path, data)

    def size(self, path: str) -> int | None:
        """Bytes of a file, or None when it is not there."""
        return self._call("size", path)

    def names(self, path: str) -> list[str]:
        """Sorted names in a folder; none when it does not exist."""
        return sorted(self._call("names", path))

    def walk(self, path: str) -> list[Entry]:
        """All files below a folder, with paths relative to it."""
        return self._patiently(path, lambda: [*self._backend.walk(path)])

    def remove(self, path: str) -> None:
        """Removes a folder or file with all it holds; nothing happens if it is not there."""
        self._call("remove", path)

    def upload(
        self, folder: str, path: str, names: list[str], check: Callable[[], None] = lambda: None
    ) -> None:
        """Copies the named files of a local folder below `path`; calls `check` between files."""
        sizes = {name: os.path.getsize(os.path.join(folder, name)) for name in names}

        def one(name: str) -> None:
            self._call("upload", f"{path}/{name}", os.path.join(folder, name))

        self._for_each(one, sizes, check)

    def download(self, path: str, folder: str, sizes: dict[str, int]) -> None:
        """Copies files, given with their bytes, into a local folder; each appears when complete."""

        def one(name: str) -> None:
            target = Path(folder, name)
            target.parent.mkdir(parents=True, exist_ok=True)
            part = target.with_name(f".{target.name[:60]}.{uuid.uuid4().hex[:12]}{TEMPORARY}")
            self._call("download", f"{path}/{name}", str(part))
            os.replace(part, target)

        self._for_each(one, sizes, lambda: None)

    def sha256(self, path: str, scratch: str) -> str:
        """SHA-256 of a file as it lies in the store now; `scratch` is a local folder for a copy."""
        if self.local:
            return sha256_of(self.full(path))
        os.makedirs(scratch, exist_ok=True)
        part = os.path.join(scratch, f".{uuid.uuid4().hex[:12]}{TEMPORARY}")
        try:
            self._call("download", path, part)
            return sha256_of(part)
        finally:
            Path(part).unlink(missing_ok=True)

    def unfinished(self, path: str) -> list[Upload]:
        """Uploads below a folder that were begun and never finished, where they can be listed."""
        return self._call("unfinished", path)

    def abort(self, upload: Upload) -> None:
        self._patiently(upload.path, partial(self._backend.abort, upload))

    def regions(self) -> tuple[str, ...]:
        """Where the bytes lie, as the provider names it; nothing for a disk or memory."""
        return self._patiently("", self._backend.regions)

    @property
    def _backend(self) -> Backend:
        """One client per process: what a forked process inherits is not used."""
        if self._opened is None or self._opened[0] != os.getpid():
            self._opened = (os.getpid(), self._open_backend())
        return self._opened[1]

    def _call(self, name: str, path: str, *args: Any) -> Any:
        return self._patiently(path, getattr(self._backend, name), path, *args)

    def _patiently(self, path: str, call: Callable[..., Any], *args: Any) -> Any:
        where = f"{self.prefix}/{path}"
        return patiently(self._backend, self.patience_seconds, where, call, *args)

    def _own_version(self, path: str, data: bytes) -> str | None:
        """The version of what this writer wrote in a try whose answer it never got, if it did."""
        now = self.read_version(path)
        return now.version if now is not None and now.data == data else None

    def _for_each(
        self, one: Callable[[str], None], sizes: dict[str, int], check: Callable[[], None]
    ) -> None:
        """Small files some at a time, large ones alone, the first error ends it."""
        small = [name for name, size in sizes.items() if size < LARGE_BYTES]
        for _ in self._in_parallel(one, small):
            check()
        for name in sizes.keys() - set(small):
            one(name)
            check()

    def _in_parallel(self, one: Callable[[str], None], names: Iterable[str]) -> Iterator[None]:
        pool = ThreadPoolExecutor(PARALLEL_FILES, thread_name_prefix="marin-copy")
        try:
            for done in as_completed([pool.submit(one, name) for name in names]):
                yield done.result()
        finally:
            pool.shutdown(cancel_futures=True)


__all__ = ["Storage", "StorageError"]
