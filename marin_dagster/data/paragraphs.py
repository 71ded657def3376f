"""Turns Documents into ones in which no paragraph, or no line, stands twice in the whole corpus."""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from marin_dagster.data.documents import Document, shard_paths
from marin_dagster.data.pipeline import (
    DocumentStep,
    Drop,
    Keep,
    checksum,
    map_documents,
    run_tasks,
    work_folder,
)
from marin_dagster.data.row_files import load_rows
from marin_dagster.kinds import Documents
from marin_dagster.recipe import Context, Summary

EVIDENCE_FILE = "paragraphs.jsonl"
_SEPARATORS = {"paragraph": re.compile(r"(\n\s*\n)"), "line": re.compile(r"(\n)")}
_EXCERPT_CHARACTERS = 200
_WORK_FORMAT = 1

Unit = Literal["paragraph", "line"]


@dataclass(frozen=True, kw_only=True)
class DeduplicateParagraphs(Documents):
    """Removes a paragraph whose words stood in an earlier one, in any document; the first stays.

    Equal means equal after case folding, NFKC, and without punctuation and line breaks. Paragraphs
    are separated by blank lines; with `unit="line"` every line is one. Those below `min_words`
    stay: short ones repeat by chance. A document of which nothing is left is dropped.
    """

    stage = "deduped"

    documents: Documents
    unit: Unit = "paragraph"
    min_words: int = 5

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.unit not in _SEPARATORS:
            raise ValueError(f"unit={self.unit!r} is unknown; use 'paragraph' or 'line'")
        if self.min_words < 1:
            raise ValueError(f"min_words={self.min_words} of {self.address} is below 1; try 5")

    def build(self, ctx: Context) -> Summary:
        """Hashes all paragraphs, finds the repeated ones, and writes the documents without them."""
        from marin_dagster.data.paragraph_match import save_repeats

        folder = ctx.path(self.documents)
        inputs = [checksum(path) for path in shard_paths(folder)]
        identity = f"{_WORK_FORMAT} {self.unit} {self.min_words}"
        work = work_folder(ctx, "paragraphs", inputs, identity)
        hashed, repeats = os.path.join(work, "hashed"), os.path.join(work, "repeats")
        paths = [path for path, *_ in inputs]
        run_tasks(
            ctx, hashed, partial(_steps, hashed, paths, self.unit, self.min_words), len(paths)
        )
        numbers = save_repeats(hashed, repeats, len(paths))
        step = _RemoveRepeats(repeats, self.unit)
        report = map_documents(ctx, folder, step, evidence_file=EVIDENCE_FILE)
        numbers = {**report.numbers(), **numbers}
        return Summary(numbers=numbers, counts=report.counts, tables=report.tables())


@dataclass(frozen=True)
class _RemoveRepeats(DocumentStep):
    """Cuts out the paragraphs that the file of a shard lists by row."""

    folder: str
    unit: Unit

    def judge(self, document: Document, shard: int, row: int) -> Keep | Drop:
        if not document["text"].strip():
            return Drop("empty")
        repeats = dict(load_rows(self.folder, shard).get(row, ()))
        if not repeats:
            return Keep(document)
        parts = split(document["text"], self.unit)
        stays = "".join(
            part + gap for number, (part, gap) in enumerate(parts) if number not in repeats
        ).strip("\n")
        removed = [
            {
                "kept": kept,
                "characters": len(parts[number][0]),
                "text": parts[number][0][:_EXCERPT_CHARACTERS],
            }
            for number, kept in repeats.items()
        ]
        evidence = {"id": document["id"], "source": document["source"], "paragraphs": removed}
        if not stays.strip():
            return Drop("nothing_new", evidence)
        return Keep({**document, "text": stays}, evidence=evidence)


def split(text: str, unit: Unit) -> list[tuple[str, str]]:
    """Paragraphs or lines of a text, each with what separates it from the next."""
    parts = _SEPARATORS[unit].split(text)
    return list(zip(parts[::2], [*parts[1::2], ""], strict=True))


def _steps(work: str, paths: Sequence[str], unit: Unit, min_words: int) -> list[Any]:
    from marin_dagster.data.paragraph_steps import hash_steps

    return hash_steps(work, paths, unit, min_words)
