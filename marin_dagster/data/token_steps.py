"""Turns a shard of documents or conversations into a part of a token cache: the datatrove step.

Imported in worker processes only, because it imports datatrove.
"""

import os
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

from datatrove.pipeline.base import PipelineStep

from marin_dagster.data.compression import tally_compression
from marin_dagster.data.documents import scan_rows
from marin_dagster.data.pipeline import Drop
from marin_dagster.data.shard_steps import Ledger
from marin_dagster.data.token_cache import PartWriter
from marin_dagster.data.token_encoders import Encoded, Encoder
from marin_dagster.data.tokenizer import TextTokenizer, load_tokenizer
from marin_dagster.recipe import StageError

BATCH_CHARACTERS = 1_000_000
CHECKED_TEXTS = 20  # documents of a shard that are decoded again and compared with their text


class TokenizeShard(PipelineStep):
    """Writes the part of the input shard that has the task's number, and last the ledger."""

    type = "writer"
    name = "token cache part"

    def __init__(self, work: str, paths: Sequence[str], encoder: Encoder, ledger: Ledger):
        super().__init__()
        self._work = work
        self._paths = paths
        self._encoder = encoder
        self._ledger = ledger

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> None:
        folder = part_folder(rank)
        tokenizer = _tokenizer(self._encoder.tokenizer, self._encoder.head.tokenizer)
        with PartWriter(os.path.join(self._work, folder), self._encoder.head) as part:
            for batch in self._batches(self._paths[rank]):
                for row, found in zip(batch, self._encode(batch, tokenizer), strict=True):
                    self._account(part, row, found, tokenizer)
        self._ledger.save(self._work, rank, [os.path.join(folder, name) for name in part.files])

    def _batches(self, path: str) -> Iterator[list[Any]]:
        """The rows that are not left out, some at a time."""
        batch: list[Any] = []
        size = 0
        for number, row in scan_rows(path, self._encoder.parse):
            if isinstance(row, ValueError):
                self._ledger.line_failed(path, number, row)
                continue
            self._ledger.document_read(row["source"])
            if reason := self._encoder.refuse(row):
                self._drop(row, reason)
                continue
            batch.append(row)
            size += len(self._encoder.text_of(row))
            if size >= BATCH_CHARACTERS:
                yield batch
                batch, size = [], 0
        if batch:
            yield batch

    def _encode(
        self, batch: Sequence[Any], tokenizer: TextTokenizer
    ) -> Sequence[Encoded | Drop | ValueError]:
        try:
            return self._encoder.encode(batch, tokenizer)
        except ValueError as error:
            if len(batch) == 1:
                return [error]
            return [found for row in batch for found in self._encode([row], tokenizer)]

    def _account(
        self,
        part: PartWriter,
        row: Any,
        found: Encoded | Drop | ValueError,
        tokenizer: TextTokenizer,
    ) -> None:
        ledger, source, text = self._ledger, row["source"], self._encoder.text_of(row)
        if isinstance(found, ValueError):
            ledger.document_failed("not_encodable", row["id"], source, f"{found}")
            return
        if isinstance(found, Drop):
            self._drop(row, found.reason)
            return
        if found.weights is None and ledger.kept < CHECKED_TEXTS:
            _check(row["id"], text, found, tokenizer)
        part.write(
            found.ids,
            document=row["id"],
            source=source,
            text_bytes=found.text_bytes,
            weights=found.weights,
        )
        ledger.document_kept(source, len(text))
        tally_compression(ledger.tally, row, len(text.encode()), len(found.ids))
        if spelled := tokenizer.count_control_spellings(text):
            ledger.tally("text", "control_spellings", spelled)

    def _drop(self, row: Any, reason: str) -> None:
        text = self._encoder.text_of(row)
        self._ledger.document_dropped(reason, row["id"], row["source"], text)


def part_folder(shard: int) -> str:
    """Where the part of a shard lies below the work folder."""
    return os.path.join("parts", f"{shard:05d}")


@lru_cache(maxsize=1)
def _tokenizer(folder: str, digest: str) -> TextTokenizer:
    """Once per process and model, because words that are known need not be encoded again."""
    tokenizer = load_tokenizer(folder)
    assert tokenizer.digest == digest
    return tokenizer


def _check(where: str, text: str, found: Encoded, tokenizer: TextTokenizer) -> None:
    if tokenizer.decode(found.ids) != text:
        raise StageError(
            "error",
            f"the ids of document {where} do not decode to its text; the tokenizer is at fault, "
            "train it again",
        )
