"""Turns Documents into distinct ones: exact copies go, then near copies, each with evidence."""

import itertools
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Literal

from marin_dagster.data.documents import Document, shard_paths
from marin_dagster.data.pipeline import (
    Checksum,
    DocumentStep,
    Drop,
    Keep,
    MapReport,
    checksum,
    map_documents,
    run_tasks,
    work_folder,
)
from marin_dagster.data.row_files import load_rows
from marin_dagster.kinds import Documents
from marin_dagster.recipe import Context, StageError, Summary

EVIDENCE_FILE = "duplicates.jsonl"
_SMALL_SOURCE = 100  # documents; below, a large removed share says little
_SHOWN_PAIRS = 3
_MIN_DETECTION = 0.5
_WORK_FORMAT = 2


@dataclass(frozen=True, kw_only=True)
class Deduplicate(Documents):
    """Removes a document when a kept one has the same words, or nearly the same word n-grams.

    Exact: equal after case folding, NFKC, and without punctuation and line breaks. Near: MinHash
    with `num_bands` x `rows_per_band` hashes proposes pairs, and a document goes only when its
    true n-gram Jaccard similarity with a kept document is at least `min_similarity`. Chains of
    pairwise similar documents therefore do not collapse into one. Documents shorter than
    `ngram_size` words have no n-grams; only exact copies of them go.

    `against`: artifacts that are read only; a document with a copy in one of them goes, and the
    evidence names the artifact. So a new crawl is compared with those before it.
    `keep`: of similar documents the `longest` (most words, then first), or the `first` in order.
    `max_characters`: what MinHash and the similarity see of a long document.
    `max_removed_share`: a source of at least 100 documents that loses more fails the stage.
    """

    stage = "deduped"

    documents: Documents
    against: tuple[Documents, ...] = ()
    ngram_size: int = 5  # words
    num_bands: int = 24
    rows_per_band: int = 7
    min_similarity: float = 0.75
    keep: Literal["longest", "first"] = "longest"
    max_characters: int = 200_000
    max_comparisons: int = 200  # kept documents that one document is compared with
    max_removed_share: float = 0.95
    seed: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("ngram_size", "num_bands", "rows_per_band", "max_characters"):
            if getattr(self, name) < 1:
                value = getattr(self, name)
                raise ValueError(f"{name}={value} of {self.address} is below 1; raise it")
        if self.max_comparisons < 1:
            raise ValueError(f"max_comparisons={self.max_comparisons} is below 1; try 200")
        for name in ("min_similarity", "max_removed_share"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f"{name}={getattr(self, name)} is outside (0, 1]; see {self!r}")
        if self.documents in self.against:
            raise ValueError(
                f"against of {self.address} holds its documents, {self.documents.address}: "
                "nothing would be left; give earlier artifacts"
            )
        if self.keep not in ("longest", "first"):
            raise ValueError(f"keep={self.keep!r} is unknown; use 'longest' or 'first'")
        if self.detection < _MIN_DETECTION:
            raise ValueError(
                f"num_bands={self.num_bands} x rows_per_band={self.rows_per_band} finds a pair of "
                f"min_similarity={self.min_similarity} with probability {self.detection:.3f}, "
                f"below {_MIN_DETECTION}; give more bands, or fewer rows per band"
            )

    @property
    def detection(self) -> float:
        """Probability that MinHash proposes a pair of similarity s: 1 - (1 - s^rows)^bands."""
        return 1 - (1 - self.min_similarity**self.rows_per_band) ** self.num_bands

    def build(self, ctx: Context) -> Summary:
        """Finds copies, verifies them, and writes the rest with the evidence."""
        folder = ctx.path(self.documents)
        shards = [(old.address, shard_paths(ctx.path(old))) for old in self.against]
        shards += [(self.address, shard_paths(folder))]
        inputs = [checksum(path) for _, paths in shards for path in paths]
        owners = [address for address, paths in shards for _ in paths]
        removals, numbers = self.find(ctx, inputs, owners)
        report = map_documents(ctx, folder, _Remove(removals), evidence_file=EVIDENCE_FILE)
        self._refuse_lost_sources(report, os.path.join(ctx.out, EVIDENCE_FILE))
        numbers = {**report.numbers(), **numbers, "detection": round(self.detection, 4)}
        return Summary(numbers=numbers, counts=report.counts, tables=report.tables())

    def find(
        self, ctx: Context, inputs: Sequence[Checksum], owners: Sequence[str]
    ) -> tuple[str, dict[str, int]]:
        """The folder of removals, and what was counted; `owners`: the artifact of each shard."""
        from marin_dagster.data import dedup_match

        work = work_folder(ctx, "dedup", inputs, f"{_WORK_FORMAT} {asdict(self.config)} {owners}")
        signed, grams = os.path.join(work, "signed"), os.path.join(work, "grams")
        paths = [path for path, *_ in inputs]
        corpus = dedup_match.Corpus(signed, grams, tuple(owners), owners.index(self.address))
        run_tasks(ctx, signed, partial(_sign_steps, signed, paths, self.config), len(paths))
        found = dedup_match.propose(corpus, self.config)
        run_tasks(ctx, grams, partial(_gram_steps, signed, grams, paths, self.config), len(paths))
        ctx.log("verifying the pairs that MinHash proposes")
        removals, numbers = dedup_match.verify(corpus, found, self.config)
        folder = os.path.join(work, "removals")
        dedup_match.save_removals(folder, corpus, removals)
        return folder, numbers

    @property
    def config(self) -> "MatchConfig":
        """What decides which documents match."""
        return MatchConfig(
            ngram_size=self.ngram_size,
            num_bands=self.num_bands,
            rows_per_band=self.rows_per_band,
            min_similarity=self.min_similarity,
            keep_longest=self.keep == "longest",
            max_characters=self.max_characters,
            max_comparisons=self.max_comparisons,
            seed=self.seed,
        )

    def _refuse_lost_sources(self, report: MapReport, evidence_path: str) -> None:
        for source, (read, kept) in report.sources.items():
            share = (read - kept) / read
            if read >= _SMALL_SOURCE and share > self.max_removed_share:
                raise StageError(
                    "bad_input",
                    f"{self.address} removed {share:.1%} of source {source!r}, above "
                    f"max_removed_share={self.max_removed_share}; look at these pairs, then raise "
                    f"the limit or min_similarity: {_pairs_of(source, evidence_path)}",
                )


@dataclass(frozen=True, kw_only=True)
class MatchConfig:
    """The fields of Deduplicate that workers need."""

    ngram_size: int
    num_bands: int
    rows_per_band: int
    min_similarity: float
    keep_longest: bool
    max_characters: int
    max_comparisons: int
    seed: int


@dataclass(frozen=True)
class _Remove(DocumentStep):
    """Drops the documents that the file of a shard lists by row."""

    folder: str

    def judge(self, document: Document, shard: int, row: int) -> Keep | Drop:
        removal = load_rows(self.folder, shard).get(row)
        if removal is None:
            return Keep(document)
        if removal["kind"] == "empty":
            return Drop("empty")
        evidence = {"removed": document["id"], "source": document["source"], **removal}
        return Drop(f"{removal['kind']}_duplicate", evidence)


def _pairs_of(source: str, evidence_path: str) -> list[dict[str, Any]]:
    with open(evidence_path, encoding="utf-8") as file:
        rows = (row for row in map(json.loads, file) if row["source"] == source)
        return list(itertools.islice(rows, _SHOWN_PAIRS))


def _sign_steps(work: str, paths: Sequence[str], config: MatchConfig) -> list[Any]:
    from marin_dagster.data.dedup_steps import sign_steps

    return sign_steps(work, paths, config)


def _gram_steps(signed: str, work: str, paths: Sequence[str], config: MatchConfig) -> list[Any]:
    from marin_dagster.data.dedup_steps import gram_steps

    return gram_steps(signed, work, paths, config)
