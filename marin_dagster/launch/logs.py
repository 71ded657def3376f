"""Turns a log into its last lines."""

from pathlib import Path

TAIL_BYTES = 64 * 1024  # enough for them


def last_lines(path: Path, lines: int) -> list[str]:
    """The last lines of a file; none where there is no file."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - TAIL_BYTES))
            return file.read().decode(errors="replace").splitlines()[-lines:]
    except FileNotFoundError:
        return []
