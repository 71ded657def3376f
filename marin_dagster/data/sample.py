"""Turns the files of an artifact into a few rows to look at, drawn at random."""

import json
import os
import random
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, TypeVar

from marin_dagster.data.documents import parse_conversation, read_lines, shard_paths
from marin_dagster.data.token_cache import PROVENANCE_FILE, TokenCacheReader
from marin_dagster.data.tokenizer import TextTokenizer
from marin_dagster.recipe import StageError

CRAWL_LOG = "crawl.jsonl"
Item = TypeVar("Item")


class Sampled(NamedTuple):
    """One row: where it stands, what it is called, where it came from, and its text."""

    where: str
    id: str
    source: str
    text: str


def draw(folder: str, number: int, seed: int, tokenizer: TextTokenizer | None) -> list[Sampled]:
    """Draws rows of documents, conversations, pages or token caches; the same ones for one seed.

    Of an artifact in shards, those of as many shards are read as rows are drawn. `tokenizer` is
    that of a token cache. Raises StageError for an artifact that has no rows of this kind.
    """
    rng = random.Random(seed)
    if os.path.isdir(os.path.join(folder, "documents")):
        return _documents(folder, "documents", number, rng)
    if os.path.isdir(os.path.join(folder, "conversations")):
        return _documents(folder, "conversations", number, rng)
    if os.path.exists(os.path.join(folder, CRAWL_LOG)):
        return _pages(os.path.join(folder, CRAWL_LOG), number, rng)
    if os.path.exists(os.path.join(folder, PROVENANCE_FILE)) and tokenizer is not None:
        return _rows_of_tokens(folder, number, rng, tokenizer)
    raise StageError(
        "bad_input",
        f"{folder} has no rows to draw from; documents, conversations, pages and token caches have",
    )


def _documents(folder: str, kind: str, number: int, rng: random.Random) -> list[Sampled]:
    paths = shard_paths(folder, kind)
    wanted = Counter(rng.choice(paths) for _ in range(number))
    found = []
    for path in sorted(wanted):
        lines = enumerate(read_lines(path), start=1)
        for place, line in _reservoir(lines, wanted[path], rng):
            found.append(_document(kind, f"{os.path.basename(path)} line {place}", line))
    return found


def _document(kind: str, where: str, line: bytes) -> Sampled:
    if kind == "conversations":
        chat = parse_conversation(line)
        said = [f"{message['role']}: {message['content']}" for message in chat["messages"]]
        return Sampled(where, chat["id"], chat["source"], "\n".join(said))
    row = json.loads(line)
    url = row.get("metadata", {}).get("url")
    return Sampled(where, row["id"], url or row["source"], row["text"])


def _pages(path: str, number: int, rng: random.Random) -> list[Sampled]:
    with open(path, encoding="utf-8") as file:
        drawn = list(_reservoir(enumerate(file, start=1), number, rng))
    rows = [(place, json.loads(line)) for place, line in drawn]
    return [
        Sampled(f"{CRAWL_LOG} line {place}", _outcome(row), row["url"], "") for place, row in rows
    ]


def _outcome(row: dict[str, Any]) -> str:
    return f"{row['outcome']}, status {row['status']}, {row['bytes']} bytes"


def _rows_of_tokens(
    folder: str, number: int, rng: random.Random, tokenizer: TextTokenizer
) -> list[Sampled]:
    reader = TokenCacheReader(folder)
    lines = enumerate(read_lines(os.path.join(folder, PROVENANCE_FILE)))
    found = []
    for index, line in _reservoir(lines, number, rng):
        row, ids = json.loads(line), reader.document(index)
        text = tokenizer.visible(ids.tolist())
        found.append(
            Sampled(f"document {index}, {len(ids)} tokens", row["id"], row["source"], text)
        )
    return found


def _reservoir(items: Iterable[Item], number: int, rng: random.Random) -> Iterator[Item]:
    """Draws items of a stream, each with the same chance, in their order (Vitter 1985)."""
    kept: dict[int, Item] = {}
    for count, item in enumerate(items):
        slot = count if count < number else rng.randrange(count + 1)
        if slot < number:
            kept.pop(slot, None)  # a new entry comes last
            kept[slot] = item
    yield from kept.values()
