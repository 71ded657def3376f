"""Turns Documents into the better ones among them: by language, by rules, by a classifier."""

import os
from dataclasses import dataclass

from marin_dagster.data.documents import Document
from marin_dagster.data.pipeline import DocumentStep, Drop, Keep, checksum, map_documents
from marin_dagster.data.rules import (
    C4Quality,
    FineWebQuality,
    GopherQuality,
    GopherRepetition,
    MaxCharacters,
    MinWords,
    RuleConfig,
)
from marin_dagster.kinds import Classifier, Documents
from marin_dagster.recipe import Context, Summary

__all__ = [
    "C4Quality",
    "FilterDocuments",
    "FineWebQuality",
    "GopherQuality",
    "GopherRepetition",
    "MaxCharacters",
    "MinWords",
    "RuleConfig",
]


@dataclass(frozen=True, kw_only=True)
class FilterDocuments(Documents):
    """Keeps documents in the given languages that pass every rule and score `min_quality`.

    Rules apply in order, and the first that fails gives the reason. Languages are read from
    `metadata.language`. With a classifier the scores stand in `attributes/quality/`.
    """

    stage = "filtered"

    documents: Documents
    rules: tuple[RuleConfig, ...] = ()
    classifier: Classifier | None = None
    min_quality: float | None = None
    languages: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.classifier is None) != (self.min_quality is None):
            raise ValueError(
                f"min_quality={self.min_quality} of {self.address} with classifier="
                f"{self.classifier and self.classifier.address}; give both, or neither"
            )
        if self.min_quality is not None and not 0 <= self.min_quality <= 1:
            raise ValueError(f"min_quality={self.min_quality} is outside [0, 1]; try 0.5")
        if self.languages == ():
            raise ValueError(f"languages=() of {self.address} keeps nothing; use None for any")
        if not self.rules and self.classifier is None and self.languages is None:
            raise ValueError(f"{self.address} filters nothing; give rules, classifier or languages")

    def build(self, ctx: Context) -> Summary:
        """Judges every document in worker processes."""
        folder = ctx.path(self.classifier) if self.classifier else None
        step = _Judge(self.rules, self.languages, folder, self.min_quality, _identity(folder))
        attributes = ("quality",) if folder else ()
        report = map_documents(ctx, ctx.path(self.documents), step, attributes=attributes)
        ctx.log(f"kept {report.kept} of {report.read} documents")
        return Summary(numbers=report.numbers(), counts=report.counts, tables=report.tables())


@dataclass(frozen=True)
class _Judge(DocumentStep):
    rules: tuple[RuleConfig, ...]
    languages: tuple[str, ...] | None
    classifier_folder: str | None
    min_quality: float | None
    classifier_identity: str

    def judge(self, document: Document, shard: int, row: int) -> Keep | Drop:
        if not document["text"].strip():
            return Drop("empty")
        if self.languages and document["metadata"].get("language") not in self.languages:
            return Drop("language")
        for rule in self.rules:
            text, reason = rule.judge(document["text"])
            if reason:
                return Drop(reason)
            document = {**document, "text": text}
        if self.classifier_folder is None or self.min_quality is None:
            return Keep(document)
        from marin_dagster.data.quality import load_classifier

        score = load_classifier(self.classifier_folder).score(document["text"])
        if score < self.min_quality:
            return Drop("low_quality")
        return Keep(document, {"quality": round(score, 6)})


def _identity(classifier_folder: str | None) -> str:
    """The bytes of the model, so that shards judged by an older model are not reused."""
    if classifier_folder is None:
        return ""
    return checksum(os.path.join(classifier_folder, "model.bin"))[2]
