"""Turns counts of bytes and tokens, by source and by language, into tables of bytes per token."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

BY = ("source", "language")
UNKNOWN = "unknown"
SHOWN_ROWS = 50

Tally = Callable[[str, str, int], None]  # name, value, amount


def tally_compression(tally: Tally, row: Mapping[str, Any], num_bytes: int, tokens: int) -> None:
    """Counts a document or conversation: its UTF-8 bytes, and the tokens that they became."""
    values = (row["source"], row["metadata"].get("language"))
    for by, value in zip(BY, values, strict=True):
        tally(f"bytes by {by}", str(value or UNKNOWN), num_bytes)
        tally(f"tokens by {by}", str(value or UNKNOWN), tokens)


def compression_tables(
    tallies: Mapping[str, Mapping[str, int]],
) -> dict[str, Sequence[Mapping[str, Any]]]:
    """Bytes per token of each source and of each language, those with most bytes first."""
    return {f"Compression by {by}": _rows(by, tallies) for by in BY}


def _rows(by: str, tallies: Mapping[str, Mapping[str, int]]) -> list[dict[str, Any]]:
    tokens = tallies.get(f"tokens by {by}", {})
    ranked = sorted(tallies.get(f"bytes by {by}", {}).items(), key=lambda item: (-item[1], item[0]))
    return [
        {
            by: value,
            "bytes": num_bytes,
            "tokens": tokens[value],
            "bytes_per_token": round(num_bytes / max(tokens[value], 1), 4),
        }
        for value, num_bytes in ranked[:SHOWN_ROWS]
    ]
