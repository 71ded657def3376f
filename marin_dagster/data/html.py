"""Turns pages (WARC files of HTML) into documents: the main text of each page."""

import glob
import itertools
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from marin_dagster.kinds import Documents, Pages
from marin_dagster.recipe import Context, StageError, Summary

if TYPE_CHECKING:
    from marin_dagster.data.extract_worker import Settings
    from marin_dagster.data.pipeline import MapReport


@dataclass(frozen=True, kw_only=True)
class ExtractText(Documents):
    """Extracts the main text of HTML pages, each in a process with limits.

    Documents have the page's host as source, its fetch time as `created`, and url, title, date,
    license, language and encoding as metadata, empty where unknown. A WARC file becomes a shard of
    documents, and of records that tell what became of each page. Where the extractor finds nothing
    or fails, the other one is asked.
    """

    stage: ClassVar[str] = "text"

    pages: Pages
    extractor: Literal["auto", "trafilatura", "resiliparse"] = "auto"  # auto: by the page
    favor: Literal["precision", "balanced", "recall"] = "precision"  # of extractor="trafilatura"
    output: Literal["text", "markdown"] = "text"
    min_chars: int = 25
    max_html_bytes: int = 5_000_000
    max_depth: int = 1_000  # nested elements
    cpu_seconds: float = 20.0  # per page
    memory_bytes: int = 4_000_000_000  # per worker
    max_lost_fraction: float = 0.5  # of HTML pages: empty, too short or failed; above, it fails

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, allowed in (
            ("extractor", ("auto", "trafilatura", "resiliparse")),
            ("favor", ("precision", "balanced", "recall")),
            ("output", ("text", "markdown")),
        ):
            if getattr(self, name) not in allowed:
                raise ValueError(
                    f"{name}={getattr(self, name)!r} of {self.address} is not known; "
                    f"choose from {', '.join(allowed)}"
                )
        if self.favor != "precision" and self.extractor != "trafilatura":
            raise ValueError(
                f"favor={self.favor!r} of {self.address} is for trafilatura, and extractor="
                f"{self.extractor!r}; leave favor out, or use extractor='trafilatura'"
            )
        if self.output == "markdown" and self.extractor == "resiliparse":
            raise ValueError(
                f"output='markdown' of {self.address}: resiliparse writes no Markdown; use "
                "extractor='auto' or 'trafilatura'"
            )
        for name in ("max_html_bytes", "max_depth", "cpu_seconds", "memory_bytes"):
            if getattr(self, name) <= 0:
                value = getattr(self, name)
                raise ValueError(f"{name}={value} of {self.address} must be above 0; raise it")

    def build(self, ctx: Context) -> Summary:
        """Extracts WARC files side by side, each into a shard of documents and of page records."""
        from marin_dagster.data.documents import read_documents
        from marin_dagster.data.pipeline import map_shards

        paths, settings = _warc_files(ctx.path(self.pages)), self._settings()
        report = map_shards(
            ctx,
            paths,
            partial(_pipeline, paths, settings, self.min_chars),
            identity=f"{settings} {self.min_chars}",
            check=self._check,
        )
        first = itertools.islice(read_documents(ctx.out), 3)
        samples = "\n\n---\n\n".join(document["text"][:500] for document in first)
        return Summary(
            numbers={
                "documents": report.kept,
                "characters": report.characters,
                "html_pages": _html_pages(report),
                "lost_fraction": round(1 - report.kept / _html_pages(report), 6),
            },
            counts=replace(report.counts, unit="pages"),
            tables={**report.tables(), **_tally_tables(report)},
            notes={"first documents": samples},
        )

    def _settings(self) -> "Settings":
        from marin_dagster.data.extract_worker import Settings

        return Settings(
            extractor=self.extractor,
            favor=self.favor,
            output=self.output,
            max_html_bytes=self.max_html_bytes,
            max_depth=self.max_depth,
            cpu_seconds=self.cpu_seconds,
            memory_bytes=self.memory_bytes,
        )

    def _check(self, report: "MapReport") -> None:
        reasons = {**report.dropped, **report.errors}
        told = ", ".join(f"{name} {count}" for name, count in sorted(reasons.items()))
        if not report.kept:
            raise StageError(
                "bad_input",
                f"{self.address} kept 0 of {report.read} documents: {told or 'no page'}; look at "
                "the pages, or choose another extractor or a lower min_chars",
            )
        html_pages = _html_pages(report)
        if html_pages - report.kept > self.max_lost_fraction * html_pages:
            raise StageError(
                "bad_input",
                f"{self.address} lost {html_pages - report.kept} of {html_pages} HTML pages "
                f"({told}), above max_lost_fraction={self.max_lost_fraction}; look at them, or "
                "raise the limit",
            )


def _warc_files(folder: str) -> tuple[str, ...]:
    found = (
        glob.glob(os.path.join(glob.escape(folder), "warc", pattern))
        for pattern in ("*.warc", "*.warc.gz")
    )
    paths = tuple(sorted(itertools.chain(*found)))
    if not paths:
        raise StageError("bad_input", f"{folder}/warc holds no WARC file; rebuild the pages")
    return paths


def _pipeline(paths: Sequence[str], settings: "Settings", min_chars: int, work: str) -> list[Any]:
    from marin_dagster.data.documents import SUFFIX
    from marin_dagster.data.extract_steps import ExtractShard
    from marin_dagster.data.shard_steps import Ledger, WriteShard

    ledger = Ledger()
    names = [f"{shard:05d}{SUFFIX}" for shard in range(len(paths))]
    return [
        ExtractShard(work, paths, settings, min_chars, ledger),
        WriteShard(work, names, (), ledger),
    ]


def _html_pages(report: "MapReport") -> int:
    return report.tallies.get("pages", {}).get("html", 0)


def _tally_tables(report: "MapReport") -> dict[str, Sequence[Mapping[str, Any]]]:
    """Documents by language and by extractor, the most frequent first."""
    tables: dict[str, Sequence[Mapping[str, Any]]] = {}
    for title, column in (("languages", "language"), ("extractors", "extractor")):
        ranked = sorted(report.tallies.get(title, {}).items(), key=lambda item: (-item[1], item[0]))
        tables[title] = [{column: name, "documents": count} for name, count in ranked]
    return tables
