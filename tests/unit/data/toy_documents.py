"""Toy Documents for the tests of the data stages: written from values, with a known answer."""

import contextlib
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from marin_dagster.data import dedup, paragraphs, pipeline
from marin_dagster.data.documents import DocumentWriter, new_document
from marin_dagster.kinds import Documents
from marin_dagster.recipe import Context, Summary

VOCABULARY = [
    f"{a}{b}{c}" for a in "bdfgklmnprst" for b in "aeiou" for c in ("ra", "lo", "mi", "n")
]


@dataclass(frozen=True, kw_only=True)
class ToyDocuments(Documents):
    """Documents that a test writes by itself with `write_documents`."""

    stage = "raw"

    def build(self, ctx: Context) -> Summary:
        raise NotImplementedError


def write_documents(
    root: Path,
    texts: Sequence[str],
    *,
    name: str = "toy",
    source: str | Sequence[str] = "toy",
    metadata: Mapping[str, Any] | None = None,
    shard_documents: int = 100,
) -> ToyDocuments:
    """Writes texts as an artifact under the root of a FakeContext, and returns its recipe."""
    recipe = ToyDocuments(name=name, version="dev")
    sources = [source] * len(texts) if isinstance(source, str) else source
    with DocumentWriter(str(root / "artifacts" / recipe.address), shard_documents) as writer:
        for text, where in zip(texts, sources, strict=True):
            writer.write(new_document(text, source=where, metadata=metadata))
    return recipe


def random_text(rng: random.Random, num_words: int) -> str:
    """Random sentences over a vocabulary of 240 made-up words."""
    words = rng.choices(VOCABULARY, k=num_words)
    sentences = [" ".join(words[i : i + 12]).capitalize() + "." for i in range(0, num_words, 12)]
    return " ".join(sentences)


@contextlib.contextmanager
def in_this_process() -> Iterator[None]:
    """Runs the shards of a stage here, one after the other: no process has to start."""

    def run(ctx: Context, work: str, make_pipeline: Callable[[], list], num_tasks: int) -> None:
        for task in range(num_tasks):
            data = None
            for step in make_pipeline():
                data = step(data, task, num_tasks)

    with pytest.MonkeyPatch.context() as patch:
        for module in (pipeline, dedup, paragraphs):
            patch.setattr(module, "run_tasks", run)
        yield
