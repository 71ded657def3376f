"""Turns a WARC file into a shard of documents: the datatrove step that reads and extracts pages.

Imported in worker processes only, because it imports datatrove.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from datatrove.data import Document as PipedDocument
from datatrove.pipeline.base import PipelineStep

from marin_dagster.data.documents import SUFFIX, Document, ShardFile, new_document
from marin_dagster.data.extract_child import ExtractionChild
from marin_dagster.data.extract_worker import Extracted, Settings
from marin_dagster.data.shard_steps import Ledger
from marin_dagster.data.warc import Page, PageError, Skipped, host_of, read_pages


class ExtractShard(PipelineStep):
    """Yields the documents of the WARC file that has the task's number.

    Writes a record per page, whatever became of it, to `pages/`, in the order of the file.
    """

    type = "reader"
    name = "web archive"

    def __init__(
        self, work: str, paths: Sequence[str], settings: Settings, min_chars: int, ledger: Ledger
    ):
        super().__init__()
        self._work = work
        self._paths = paths
        self._settings = settings
        self._min_chars = min_chars
        self._ledger = ledger

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> Iterator[PipedDocument]:
        name = os.path.join("pages", f"{rank:05d}{SUFFIX}")
        with (
            ShardFile(os.path.join(self._work, name)) as records,
            ExtractionChild(self._settings) as child,
        ):
            for item in read_pages(self._paths[rank]):
                extracted = child.extract(item) if isinstance(item, Page) else _told(item)
                outcome = self._account(item, extracted)
                records.write(
                    {
                        "url": item.url,
                        "outcome": outcome,
                        "characters": len(extracted.text),
                        "extractor": extracted.extractor,
                    }
                )
                if outcome == "kept":
                    assert isinstance(item, Page)
                    document = _document(item, extracted)
                    kept = {"document": document}
                    yield PipedDocument(document["text"], document["id"], metadata=kept)
        self._ledger.files.append(name)

    def _account(self, item: Page | Skipped | PageError, extracted: Extracted) -> str:
        """Counts the page, and tells whether it is kept or why it is not."""
        ledger, host = self._ledger, host_of(item.url)
        ledger.document_read(host)
        if isinstance(item, Page):
            ledger.tally("pages", "html")
        if extracted.error:
            where = item.url or f"byte {item.offset}"
            ledger.document_failed(extracted.error, where, host, extracted.message)
            return extracted.error
        short = "too_short" if len(extracted.text) < self._min_chars else ""
        reason = extracted.dropped or ("" if extracted.text else "empty_text") or short
        if reason:
            ledger.document_dropped(reason, item.url, host, extracted.text or extracted.message)
            return reason
        ledger.tally("languages", extracted.language or "unsure")
        ledger.tally("extractors", extracted.extractor)
        return "kept"


def _told(item: Skipped | PageError) -> Extracted:
    if isinstance(item, PageError):
        return Extracted(error=item.reason, message=item.message)
    return Extracted(dropped=item.reason)


def _document(page: Page, extracted: Extracted) -> Document:
    return new_document(
        extracted.text,
        source=host_of(page.url),
        created=page.date,
        metadata={
            "url": page.url,
            **asdict(extracted.facts),
            "language": extracted.language,
            "encoding": extracted.encoding,
        },
    )
