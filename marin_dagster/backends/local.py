"""Keeps bytes on a local or network disk. Atomic: `link` creates, `flock` and `rename` swap."""

import contextlib
import errno
import fcntl
import hashlib
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

from fsspec.implementations.local import LocalFileSystem

from marin_dagster.backends.base import Content, Entry, Upload

TEMPORARY = ".marin-part"  # ends the name of a file that is not complete yet
LOCK = ".lock"
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


class LocalBackend:
    """Files below a folder; a version is the SHA-256 of the content."""

    local = True
    errors: tuple[type[Exception], ...] = ()

    def __init__(self, prefix: str):
        self.root: str = str(LocalFileSystem._strip_protocol(prefix))

    def transient(self, error: Exception) -> bool:
        return False

    def read(self, path: str) -> Content | None:
        try:
            data = Path(self._full(path)).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        return Content(data, version_of(data))

    def write(self, path: str, data: bytes) -> None:
        os.replace(self._temporary(path, data), self._full(path))

    def create(self, path: str, data: bytes) -> str | None:
        temporary = self._temporary(path, data)
        try:
            os.link(temporary, self._full(path))  # atomic, and fails if the name is taken
        except FileExistsError:
            return None
        finally:
            os.unlink(temporary)
        return version_of(data)

    def replace(self, path: str, data: bytes, version: str) -> str | None:
        if not os.path.exists(self._full(path)):
            return None
        with self._locked(os.path.dirname(self._full(path))):
            now = self.read(path)
            if now is None or now.version != version:
                return None
            self.write(path, data)
        return version_of(data)

    def size(self, path: str) -> int | None:
        full = self._full(path)
        try:
            return os.stat(full).st_size if os.path.isfile(full) else None
        except FileNotFoundError:
            return None

    def names(self, path: str) -> list[str]:
        try:
            return os.listdir(self._full(path))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def walk(self, path: str) -> Iterator[Entry]:
        base = self._full(path)
        for folder, _, names in os.walk(base):
            for name in names:
                full = os.path.join(folder, name)
                with contextlib.suppress(FileNotFoundError):
                    found = os.lstat(full)
                    yield Entry(os.path.relpath(full, base), found.st_size, found.st_mtime)

    def remove(self, path: str) -> None:
        full = self._full(path)
        if os.path.isdir(full) and not os.path.islink(full):
            shutil.rmtree(full, ignore_errors=True)
        else:
            Path(full).unlink(missing_ok=True)

    def upload(self, path: str, source: str) -> None:
        full = self._full(path)
        os.makedirs(os.path.dirname(full), exist_ok=True)
        temporary = _hidden(full)
        shutil.copyfile(source, temporary)
        os.replace(temporary, full)

    def download(self, path: str, target: str) -> None:
        shutil.copyfile(self._full(path), target)

    def unfinished(self, path: str) -> list[Upload]:
        return []

    def abort(self, upload: Upload) -> None:
        raise AssertionError("a disk has no uploads")

    def regions(self) -> tuple[str, ...]:
        return ()

    def _full(self, path: str) -> str:
        return f"{self.root}/{path}" if path else self.root

    def _temporary(self, path: str, data: bytes) -> str:
        full = self._full(path)
        os.makedirs(os.path.dirname(full), exist_ok=True)
        temporary = _hidden(full)
        with open(temporary, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        return temporary

    @contextlib.contextmanager
    def _locked(self, folder: str) -> Iterator[None]:
        """Lets one at a time, thread or process, replace a file in a folder; a kill unlocks."""
        with open(os.path.join(folder, LOCK), "ab") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX)
            except OSError as error:
                if error.errno not in NO_LOCKS:
                    raise
                raise OSError(
                    error.errno,
                    f"{folder} is on a disk without file locks; mount it with locks, or set "
                    "MARIN_PREFIX to another disk or a bucket",
                ) from error
            yield


def version_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _hidden(full: str) -> str:
    folder, name = os.path.split(full)
    return os.path.join(folder, f".{name[:60]}.{uuid.uuid4().hex[:12]}{TEMPORARY}")
