"""Turns paths and patterns that a person wrote into local files, wherever they lie (fsspec)."""

import contextlib
import glob
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence

from marin_dagster.recipe import StageError


def expand_paths(paths: Sequence[str], address: str) -> list[str]:
    """Returns the files that paths and patterns name, in order; an existing name is no pattern.

    Raises StageError for a path that matches nothing.
    """
    files: list[str] = []
    for path in paths:
        if "://" in path:
            from fsspec.core import url_to_fs

            system, inside = url_to_fs(path)
            found = [inside] if system.exists(inside) else sorted(system.glob(inside))
            found = [system.unstrip_protocol(name) for name in found]
        else:
            found = [path] if os.path.exists(path) else sorted(glob.glob(path, recursive=True))
        if not found:
            raise StageError(
                "bad_input", f"{address}: paths has {path!r}, which matches no file; correct it"
            )
        files += found
    return files


@contextlib.contextmanager
def local_copy(path: str) -> Iterator[str]:
    """Gives a local copy of a file while the block runs; a local file is its own copy."""
    if "://" not in path:
        yield path
        return
    import fsspec

    with tempfile.TemporaryDirectory() as folder:
        copy = os.path.join(folder, os.path.basename(path))
        with fsspec.open(path, "rb") as source, open(copy, "wb") as target:
            shutil.copyfileobj(source, target)  # type: ignore[arg-type]
        yield copy
