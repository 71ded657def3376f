"""Turns evaluation items into an index of word n-grams that finds them inside documents."""

import json
import os
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np

from marin_dagster.data.words import ngram_hashes, word_hashes, words
from marin_dagster.recipe import StageError

CONTEXT_FIELDS = ("context", "question", "query", "goal", "prompt", "text", "sentence")
LABEL_FIELDS = ("label", "gold", "answer", "answerKey")
_MIN_WORDS = 3  # of a text that is an item at all
_EXCERPT_WORDS = 40
_PROMPT_START = re.compile(r"^\s*(question|q|goal|passage|context)\s*:\s*", re.IGNORECASE)
_PROMPT_END = re.compile(r"\s*\b(answer|a)\s*:\s*$", re.IGNORECASE)
_LOW_BITS = np.uint64((1 << 22) - 1)


@dataclass(frozen=True)
class Item:
    """One text of an evaluation task; `number` is the row in the task's file."""

    task: str
    number: int
    text: str


@dataclass(frozen=True)
class Match:
    """An item that a document holds: the share of its n-grams, and the words around the first."""

    item: Item
    overlap: float
    excerpt: str


def read_items(folder: str) -> Iterator[Item]:
    """Items of a Tasks artifact: every text of a row, and context with the correct choice."""
    inside = os.path.join(folder, "tasks")
    names = sorted(os.listdir(inside)) if os.path.isdir(inside) else []
    files = [name for name in names if name.endswith(".jsonl")]
    if not files:
        raise StageError("bad_input", f"{inside} holds no .jsonl file; build the tasks again")
    for name in files:
        with open(os.path.join(inside, name), encoding="utf-8") as file:
            for number, line in enumerate(file):
                try:
                    texts = _texts_of_row(json.loads(line))
                except (ValueError, AttributeError) as error:
                    message = f"{inside}/{name} line {number + 1} is not a JSON object ({error})"
                    raise StageError("bad_input", f"{message}; repair it") from error
                for text in texts:
                    yield Item(name.removesuffix(".jsonl"), number, text)


def _texts_of_row(row: Mapping[str, Any]) -> list[str]:
    strings = {name: _bare(value) for name, value in row.items() if isinstance(value, str)}
    texts = list(strings.values())
    context = next((strings[name] for name in CONTEXT_FIELDS if name in strings), "")
    choice = _correct_choice(row)
    if context and choice:
        texts.insert(0, f"{context} {choice}")
    return [text for text in dict.fromkeys(texts) if len(words(text)) >= _MIN_WORDS]


def _bare(text: str) -> str:
    """The text without the prompt's own words, which a leaked copy would not have."""
    return _PROMPT_END.sub("", _PROMPT_START.sub("", text))


def _correct_choice(row: Mapping[str, Any]) -> str:
    choices = row.get("choices")
    if isinstance(choices, Mapping):  # {"text": [...], "label": ["A", "B", ...]}
        letters, choices = choices.get("label"), choices.get("text")
    else:
        letters = None
    if not isinstance(choices, list):
        return ""
    label = next((row[name] for name in LABEL_FIELDS if name in row), None)
    if isinstance(label, str):
        known = list(letters or "ABCDEFGHIJ"[: len(choices)])
        label = known.index(label) if label in known else int(label) if label.isdigit() else None
    if not isinstance(label, int) or not 0 <= label < len(choices):
        return ""
    return choices[label] if isinstance(choices[label], str) else ""


@dataclass(frozen=True)
class _Table:
    """N-grams of all sizes: sorted distinct hashes, and for each the items that hold it."""

    grams: np.ndarray  # uint64[G], sorted
    starts: np.ndarray  # int64[G + 1]
    owners: np.ndarray  # int64[starts[-1]]: item numbers

    @cached_property
    def possible(self) -> np.ndarray:
        """By the low bits of a hash, whether a gram has them: most words of a document do not."""
        seen = np.zeros(int(_LOW_BITS) + 1, dtype=bool)
        seen[self.grams & _LOW_BITS] = True
        return seen

    def find(self, grams: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Positions in `grams` that are in the table, and their places in it."""
        hits = np.flatnonzero(self.possible[grams & _LOW_BITS])
        places = np.searchsorted(self.grams, grams[hits])
        places[places == len(self.grams)] = 0
        true = self.grams[places] == grams[hits]
        return hits[true], places[true]


@dataclass(frozen=True)
class ItemIndex:
    """Finds items in documents. A short item stands in the table whole, as one n-gram."""

    items: Sequence[Item]
    table: _Table
    sizes: tuple[int, ...]  # words of the n-grams in the table
    totals: np.ndarray  # int64[items]: distinct n-grams of each item; 0 if it is not searched
    min_overlap: float

    @staticmethod
    def build(
        items: Sequence[Item],
        *,
        ngram_size: int,
        min_overlap: float,
        min_item_words: int,
        whole_item_words: int,
    ) -> "ItemIndex":
        """Indexes the items of at least `min_item_words`; whole, those below `whole_item_words`."""
        grams = [np.empty(0, dtype=np.uint64)]
        totals = np.zeros(len(items), dtype=np.int64)
        sizes: set[int] = set()
        for number, item in enumerate(items):
            hashes = word_hashes(words(item.text))
            if len(hashes) >= min_item_words:
                size = ngram_size if len(hashes) >= whole_item_words else len(hashes)
                sizes.add(size)
                grams.append(np.unique(ngram_hashes(hashes, size)))
                totals[number] = len(grams[-1])
        owners = np.repeat(np.arange(len(items)), totals)
        table = _make_table(np.concatenate(grams), owners)
        return ItemIndex(items, table, tuple(sorted(sizes)), totals, min_overlap)

    @property
    def num_searched(self) -> int:
        return int((self.totals > 0).sum())

    def matches(self, text: str) -> list[Match]:
        """Items that the text holds, the most complete first."""
        tokens = words(text)
        hashes = word_hashes(tokens)
        grams = [ngram_hashes(hashes, size) for size in self.sizes]
        hits, places = self.table.find(np.concatenate(grams))
        if not len(hits):
            return []
        positions = np.concatenate([np.arange(len(found)) for found in grams])[hits]
        found = self._matches_at(positions, places, tokens)
        return sorted(
            found, key=lambda m: (-m.overlap, -len(m.item.text), m.item.task, m.item.number)
        )

    def _matches_at(
        self, positions: np.ndarray, places: np.ndarray, tokens: list[str]
    ) -> list[Match]:
        shared: dict[int, int] = defaultdict(int)
        first: dict[int, int] = {}
        distinct, where = np.unique(places, return_index=True)
        for gram, hit in zip(distinct.tolist(), positions[where].tolist(), strict=True):
            for owner in self.table.owners[
                self.table.starts[gram] : self.table.starts[gram + 1]
            ].tolist():
                shared[owner] += 1
                first[owner] = min(hit, first.get(owner, hit))
        return [
            Match(self.items[owner], count / self.totals[owner], _excerpt(tokens, first[owner]))
            for owner, count in shared.items()
            if count >= self.min_overlap * self.totals[owner]
        ]

    def save(self, path: str) -> None:
        """Writes the index to one .npz file; equal indexes give equal bytes."""
        table = self.table
        arrays = {"grams": table.grams, "starts": table.starts, "owners": table.owners}
        header = {"items": [asdict(item) for item in self.items], "sizes": self.sizes}
        header["min_overlap"] = self.min_overlap
        text = json.dumps(header).encode()
        arrays["totals"] = self.totals
        arrays["header"] = np.frombuffer(text, dtype=np.uint8)
        np.savez(path, **arrays)  # pyright: ignore[reportArgumentType]

    @staticmethod
    def load(path: str) -> "ItemIndex":
        """Reads what `save` wrote."""
        with np.load(path) as file:
            header = json.loads(file["header"].tobytes())
            table = _Table(file["grams"], file["starts"], file["owners"])
            totals = file["totals"]
        items = [Item(**item) for item in header["items"]]
        return ItemIndex(items, table, tuple(header["sizes"]), totals, header["min_overlap"])


def _make_table(grams: np.ndarray, owners: np.ndarray) -> _Table:
    order = np.lexsort((owners, grams))
    distinct, starts = np.unique(grams[order], return_index=True)
    return _Table(distinct, np.append(starts, len(grams)), owners[order])


def _excerpt(tokens: list[str], start: int) -> str:
    begin = max(0, start - _EXCERPT_WORDS // 4)
    return " ".join(tokens[begin : begin + _EXCERPT_WORDS])
