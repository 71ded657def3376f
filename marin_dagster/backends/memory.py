"""Keeps bytes in this process, for tests: fsspec's memory filesystem behind one lock."""

import threading
from collections.abc import Iterator

from fsspec.implementations.memory import MemoryFileSystem

from marin_dagster.backends.base import Content, Entry, Upload
from marin_dagster.backends.local import version_of

LOCK = threading.RLock()  # fsspec's memory filesystem is one per process, and has no lock


class MemoryBackend:
    """Files in memory; what another process writes is never seen."""

    local = False
    errors: tuple[type[Exception], ...] = ()

    def __init__(self, prefix: str):
        self._fs = MemoryFileSystem()
        self.root: str = self._fs._strip_protocol(prefix)

    def transient(self, error: Exception) -> bool:
        return False

    def read(self, path: str) -> Content | None:
        with LOCK:
            try:
                data = self._fs.cat_file(self._full(path))
            except (FileNotFoundError, IsADirectoryError):
                return None
        return Content(data, version_of(data))

    def write(self, path: str, data: bytes) -> None:
        with LOCK:
            self._fs.pipe_file(self._full(path), data)

    def create(self, path: str, data: bytes) -> str | None:
        with LOCK:
            if self.read(path) is not None:
                return None
            self.write(path, data)
        return version_of(data)

    def replace(self, path: str, data: bytes, version: str) -> str | None:
        with LOCK:
            now = self.read(path)
            if now is None or now.version != version:
                return None
            self.write(path, data)
        return version_of(data)

    def size(self, path: str) -> int | None:
        now = self.read(path)
        return None if now is None else len(now.data)

    def names(self, path: str) -> list[str]:
        base = f"{self._full(path)}/"
        with LOCK:
            below = [key[len(base) :] for key in self._fs.store if key.startswith(base)]
        return list({key.split("/", 1)[0] for key in below})

    def walk(self, path: str) -> Iterator[Entry]:
        base = f"{self._full(path)}/"
        with LOCK:
            found = [
                Entry(key[len(base) :], len(file.getbuffer()), file.modified.timestamp())
                for key, file in self._fs.store.items()
                if key.startswith(base)
            ]
        yield from found

    def remove(self, path: str) -> None:
        full = self._full(path)
        with LOCK:
            for key in [*self._fs.store]:
                if key == full or key.startswith(f"{full}/"):
                    self._fs.rm_file(key)

    def upload(self, path: str, source: str) -> None:
        with open(source, "rb") as file:
            self.write(path, file.read())

    def download(self, path: str, target: str) -> None:
        now = self.read(path)
        if now is None:
            raise FileNotFoundError(self._full(path))
        with open(target, "wb") as file:
            file.write(now.data)

    def unfinished(self, path: str) -> list[Upload]:
        return []

    def abort(self, upload: Upload) -> None:
        raise AssertionError("memory has no uploads")

    def regions(self) -> tuple[str, ...]:
        return ()

    def _full(self, path: str) -> str:
        return f"{self.root}/{path}" if path else self.root
