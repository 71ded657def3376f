"""Turns Documents into those that hold no evaluation item, and lists what was found where."""

import os
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from marin_dagster.data.documents import Document
from marin_dagster.data.pipeline import (
    DocumentStep,
    Drop,
    Keep,
    MapReport,
    checksum,
    map_documents,
)
from marin_dagster.kinds import Documents, Tasks
from marin_dagster.recipe import Context, StageError, Summary

EVIDENCE_FILE = "contaminated.jsonl"


@dataclass(frozen=True, kw_only=True)
class Decontaminate(Documents):
    """Removes documents that hold an item of an evaluation task.

    Words are compared without case, width, punctuation and line breaks, over the whole document.
    An item of at least `whole_item_words` is found when a share of at least `min_overlap` of its
    n-grams occurs; a shorter one when all its words occur in a row. Items below `min_item_words`
    are too common to look for: they are counted, not searched. Text that is paraphrased,
    translated, or split over documents is not found.

    Shorter n-grams, as `ngram_size=5`, also find items in which some words were changed. The
    summary says how many planted items were found in each disguise.
    """

    stage = "decontaminated"

    documents: Documents
    tasks: tuple[Tasks, ...]
    ngram_size: int = 13  # words
    min_overlap: float = 0.5
    min_item_words: int = 5
    whole_item_words: int = 13

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.tasks:
            raise ValueError(f"tasks=() of {self.address} is empty; give at least 1 Tasks")
        if not 1 <= self.min_item_words <= self.whole_item_words:
            raise ValueError(
                f"min_item_words={self.min_item_words} is outside [1, whole_item_words="
                f"{self.whole_item_words}]; items below it are not searched, so keep it near 5"
            )
        if not 1 <= self.ngram_size <= self.whole_item_words:
            raise ValueError(
                f"ngram_size={self.ngram_size} is outside [1, whole_item_words="
                f"{self.whole_item_words}]; items that are not found whole need an n-gram, so "
                "raise whole_item_words too"
            )
        if not 0 < self.min_overlap <= 1:
            raise ValueError(f"min_overlap={self.min_overlap} is outside (0, 1]; try 0.5")

    def build(self, ctx: Context) -> Summary:
        """Indexes the items, checks that planted ones are found, and judges every document."""
        from marin_dagster.data.disguises import plant
        from marin_dagster.data.item_index import ItemIndex, read_items

        items = [item for tasks in self.tasks for item in read_items(ctx.path(tasks))]
        index = ItemIndex.build(
            items,
            ngram_size=self.ngram_size,
            min_overlap=self.min_overlap,
            min_item_words=self.min_item_words,
            whole_item_words=self.whole_item_words,
        )
        self._refuse_unsearched(index)
        planted = plant(index)
        path = os.path.join(ctx.work, "items.npz")
        index.save(path)
        step = _Judge(path, checksum(path)[2])
        report = map_documents(ctx, ctx.path(self.documents), step, evidence_file=EVIDENCE_FILE)
        numbers = {
            **report.numbers(),
            "items": len(items),
            "items_searched": index.num_searched,
            "items_too_short": len(items) - index.num_searched,
            "planted_items_found": planted[0]["found"],
        }
        tables = {"tasks": _task_rows(index, report), "planted items": planted, **report.tables()}
        return Summary(numbers=numbers, counts=report.counts, tables=tables)

    def _refuse_unsearched(self, index: Any) -> None:
        """A task without a searchable item would pass for clean."""
        tasks = Counter(item.task for item in index.items)
        names = sorted(tasks.keys() - _searched(index).keys())
        if names or not tasks:
            found = (
                ", ".join(f"{name} (0 of {tasks[name]})" for name in names) or "no item of any task"
            )
            raise StageError(
                "bad_input",
                f"{self.address} has tasks without a searchable item: {found}; lower "
                f"min_item_words={self.min_item_words}, or leave them out",
            )


@dataclass(frozen=True)
class _Judge(DocumentStep):
    """Drops a document that holds an item; the evidence says which, and where."""

    path: str
    digest: str

    def judge(self, document: Document, shard: int, row: int) -> Keep | Drop:
        matches = _load_index(self.path, self.digest).matches(document["text"])
        if not matches:
            return Keep(document)
        best = matches[0]
        evidence = {
            "id": document["id"],
            "source": document["source"],
            "task": best.item.task,
            "item": best.item.number,
            "overlap": round(best.overlap, 4),
            "item_text": best.item.text[:500],
            "excerpt": best.excerpt,
            "tasks": sorted({match.item.task for match in matches}),
            "matched_items": len(matches),
        }
        return Drop(_reason(best.item.task), evidence)


@lru_cache(maxsize=1)
def _load_index(path: str, _digest: str) -> Any:
    from marin_dagster.data.item_index import ItemIndex

    return ItemIndex.load(path)


def _reason(task: str) -> str:
    return f"contains_{task}"


def _searched(index: Any) -> Counter[str]:
    searched = zip(index.items, index.totals, strict=True)
    return Counter(item.task for item, total in searched if total)


def _task_rows(index: Any, report: MapReport) -> list[dict[str, Any]]:
    counts = Counter(item.task for item in index.items)
    searched = _searched(index)
    return [
        {
            "task": task,
            "items": count,
            "searched": searched[task],
            "documents removed": report.dropped.get(_reason(task), 0),
        }
        for task, count in sorted(counts.items())
    ]
