"""Turns an fsspec filesystem into the few operations that the store's promises rest on."""

import os
import shutil
import tempfile
import uuid
from pathlib import Path

from fsspec import AbstractFileSystem
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem


class Storage:
    """A prefix on any fsspec filesystem; paths are relative to it.

    Writes are atomic: a reader sees the whole content or none. `create` fails if the path exists.
    """

    def __init__(self, prefix: str):
        self.prefix = prefix.rstrip("/")
        if not self.prefix or "::" in self.prefix:
            raise ValueError(
                f"prefix={prefix!r} is not a folder of its own; set MARIN_PREFIX to a folder or a "
                "URL such as gs://bucket/path"
            )
        self.fs: AbstractFileSystem
        try:
            self.fs, self.root = url_to_fs(self.prefix)
        except (ImportError, ValueError) as error:
            raise ValueError(
                f"prefix={prefix!r} cannot be opened: {error}; install what it needs, or set "
                "MARIN_PREFIX to a folder"
            ) from error
        self.local = isinstance(self.fs, LocalFileSystem)

    def full(self, path: str) -> str:
        """The path within the filesystem; on a local one, an absolute path."""
        return f"{self.root}/{path}" if path else self.root

    def url(self, path: str) -> str:
        """The path as a person would write it elsewhere."""
        return self.full(path) if self.local else f"{self.prefix}/{path}"

    def read(self, path: str) -> bytes | None:
        """The content, or None when there is no such file."""
        try:
            content = self.fs.cat_file(self.full(path))
        except (FileNotFoundError, NotADirectoryError):
            return None
        return content.encode() if isinstance(content, str) else content

    def write(self, path: str, content: bytes) -> None:
        full = self.full(path)
        if not self.local:
            self.fs.pipe_file(full, content)
            return
        temporary = self._temporary(full, content)
        os.replace(temporary, full)

    def create(self, path: str, content: bytes) -> bool:
        """Writes a new file; returns False, and writes nothing, when it is there already."""
        full = self.full(path)
        if not self.local:
            try:
                self.fs.pipe_file(full, content, mode="create")
            except FileExistsError:
                return False
            return True
        temporary = self._temporary(full, content)
        try:
            os.link(temporary, full)  # atomic, and fails if the name is taken
        except FileExistsError:
            return False
        finally:
            os.unlink(temporary)
        return True

    def size(self, path: str) -> int | None:
        """Bytes of a file, or None when it is not there."""
        try:
            return self.fs.size(self.full(path))
        except (FileNotFoundError, NotADirectoryError):
            return None

    def names(self, path: str) -> list[str]:
        """Sorted names in a folder; none when it does not exist."""
        try:
            self.fs.invalidate_cache(self.full(path))
            found = self.fs.ls(self.full(path), detail=False)
        except (FileNotFoundError, NotADirectoryError):
            return []
        return sorted(entry.rstrip("/").rsplit("/", 1)[-1] for entry in found)

    def remove(self, path: str) -> None:
        """Removes a folder or file with all it holds; nothing happens if it is not there."""
        full = self.full(path)
        if self.local:
            if os.path.isdir(full):
                shutil.rmtree(full, ignore_errors=True)
            else:
                Path(full).unlink(missing_ok=True)
            return
        try:
            self.fs.rm(full, recursive=True)
        except FileNotFoundError:
            return

    def upload(self, folder: str, path: str, names: list[str]) -> None:
        """Copies the named files of a local folder below `path`."""
        for name in names:
            target = self.full(f"{path}/{name}")
            self.fs.makedirs(target.rsplit("/", 1)[0], exist_ok=True)
            self.fs.put_file(os.path.join(folder, name), target)

    def download(self, path: str, folder: str, names: list[str]) -> None:
        for name in names:
            target = Path(folder, name)
            target.parent.mkdir(parents=True, exist_ok=True)
            part = f"{target}.{uuid.uuid4().hex[:8]}.part"
            self.fs.get_file(self.full(f"{path}/{name}"), part)
            os.replace(part, target)

    def _temporary(self, full: str, content: bytes) -> str:
        folder, name = os.path.split(full)
        os.makedirs(folder, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=f".{name}.", dir=folder)
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        return temporary
