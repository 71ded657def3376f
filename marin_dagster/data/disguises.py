"""Turns evaluation items into the forms in which they leak, and counts which of them are found."""

import random
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from marin_dagster.data.item_index import Item, ItemIndex
from marin_dagster.recipe import StageError

PLANTED_PER_TASK = 50
_SEED = 1
_LINE_WORDS = 8
_FILLER = "Zephyr quorum nimbus vector. "
_FULL_WIDTH = {code: code + 0xFEE0 for code in range(0x21, 0x7F)}  # NFKC takes them back


def change_words(share: float) -> Callable[[str, random.Random], str]:
    """Replaces about this share of the words."""

    def change(text: str, rng: random.Random) -> str:
        return " ".join("xylem" if rng.random() < share else word for word in text.split())

    return change


def rewrap(text: str, _rng: random.Random) -> str:
    """Breaks the text into short lines."""
    tokens = text.split()
    starts = range(0, len(tokens), _LINE_WORDS)
    return "\n".join(" ".join(tokens[start : start + _LINE_WORDS]) for start in starts)


DISGUISES: Mapping[str, Callable[[str, random.Random], str]] = {
    "as is": lambda text, _: text,
    "upper case": lambda text, _: text.upper(),
    "no punctuation": lambda text, _: re.sub(r"[^\w\s]", "", text),
    "other line breaks": rewrap,
    "full-width letters": lambda text, _: text.translate(_FULL_WIDTH),
    "in longer text": lambda text, _: f"{_FILLER * 50}{text} {_FILLER * 50}",
    "5 % of words changed": change_words(0.05),
    "10 % of words changed": change_words(0.1),
    "20 % of words changed": change_words(0.2),
}


def plant(index: ItemIndex) -> list[dict[str, Any]]:
    """Plants some items of every task in every disguise; a row with the recall of each.

    Raises StageError when one is not found as it is: such a search would find nothing.
    """
    planted = _sample(index)
    rows = []
    for disguise, change in DISGUISES.items():
        rng = random.Random(_SEED)
        missed = [item for item in planted if not _is_found(index, item, change(item.text, rng))]
        if missed and disguise == "as is":
            first = missed[0]
            message = f"planted item {first.number} of {first.task} was not found: {first.text!r}"
            raise StageError("error", f"{message}; report it, with the recipe")
        found = len(planted) - len(missed)
        row = {"disguise": disguise, "planted": len(planted), "found": found}
        rows.append({**row, "recall": round(found / len(planted), 4)})
    return rows


def _sample(index: ItemIndex) -> Sequence[Item]:
    by_task: dict[str, list[Item]] = defaultdict(list)
    for number in np.flatnonzero(index.totals).tolist():
        by_task[index.items[number].task].append(index.items[number])
    rng = random.Random(_SEED)
    return [
        item
        for items in by_task.values()
        for item in rng.sample(items, min(len(items), PLANTED_PER_TASK))
    ]


def _is_found(index: ItemIndex, item: Item, text: str) -> bool:
    return any(match.item.text == item.text for match in index.matches(text))
