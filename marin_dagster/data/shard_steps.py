"""Turns one shard into another: the datatrove steps that read, judge and write Dolma rows.

Imported in worker processes only, because it imports datatrove.
"""

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from datatrove.data import Document as PipedDocument
from datatrove.pipeline.base import PipelineStep

from marin_dagster.data.documents import (
    Document,
    ShardFile,
    scan_shard,
)
from marin_dagster.data.pipeline import (
    MAX_EXAMPLES,
    DocumentStep,
    Drop,
    checksum,
    shard_file,
    write_json,
)

_EXCERPT_CHARACTERS = 200


class Ledger:
    """Counts of one shard, shared by the steps of its pipeline."""

    def __init__(self) -> None:
        self.read = 0
        self.kept = 0
        self.characters = 0
        self.dropped: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self.examples: list[dict[str, Any]] = []
        self.sources: dict[str, list[int]] = {}
        self.tallies: dict[str, Counter[str]] = {}
        self.files: list[str] = []  # written by steps before the last, below the work folder
        self.evidence: list[Mapping[str, Any]] = []

    def document_read(self, source: str) -> None:
        self.read += 1
        self.sources.setdefault(source, [0, 0])[0] += 1

    def document_kept(self, source: str, characters: int) -> None:
        self.kept += 1
        self.characters += characters
        self.sources[source][1] += 1

    def document_dropped(self, reason: str, where: str, source: str, text: str) -> None:
        self.dropped[reason] += 1
        if self.dropped[reason] <= MAX_EXAMPLES:
            self._show(reason, where, source, text)

    def document_failed(self, reason: str, where: str, source: str, detail: str) -> None:
        self.errors[reason] += 1
        if self.errors[reason] <= MAX_EXAMPLES:
            self._show(reason, where, source, detail)

    def line_failed(self, path: str, number: int, error: ValueError) -> None:
        """Counts a line of a shard that is no row."""
        self.document_read("")
        reason = "bad_json" if isinstance(error, json.JSONDecodeError) else "bad_row"
        where = f"{os.path.basename(path)} line {number}"
        self.document_failed(reason, where, "", str(error))

    def tally(self, name: str, value: str, amount: int = 1) -> None:
        """Counts something that is neither a reason nor a source."""
        self.tallies.setdefault(name, Counter())[value] += amount

    def save(self, work: str, rank: int, files: Sequence[str]) -> None:
        """Writes the ledger, with the checksums of the shard's files: the last act of a task."""
        files = [*self.files, *files]
        found = {path: checksum(os.path.join(work, path))[1:] for path in sorted(files)}
        ledger = {name: value for name, value in vars(self).items() if name != "evidence"}
        write_json(shard_file(work, "ledger", rank, ".json"), {**ledger, "files": found})

    def _show(self, reason: str, where: str, source: str, text: str) -> None:
        excerpt = " ".join(text[: 2 * _EXCERPT_CHARACTERS].split())[:_EXCERPT_CHARACTERS]
        row = {"reason": reason, "id": where, "source": source, "excerpt": excerpt}
        self.examples.append(row)


class ReadShard(PipelineStep):
    """Yields the documents of the input shard that has the task's number.

    A line that is not a document is counted as an error; strings are cleaned.
    """

    type = "reader"
    name = "dolma shard"

    def __init__(self, paths: Sequence[str], ledger: Ledger):
        super().__init__()
        self._paths = paths
        self._ledger = ledger

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> Iterator[PipedDocument]:
        path = self._paths[rank]
        for number, document in scan_shard(path):
            if isinstance(document, ValueError):
                self._ledger.line_failed(path, number, document)
                continue
            self._ledger.document_read(document["source"])
            kept = {"document": document}
            yield PipedDocument(text=document["text"], id=document["id"], metadata=kept)


class JudgeShard(PipelineStep):
    """Passes on the documents that a DocumentStep keeps."""

    type = "filter"
    name = "document step"

    def __init__(self, step: DocumentStep, ledger: Ledger):
        super().__init__()
        self._step = step
        self._ledger = ledger

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> Iterator[PipedDocument]:
        for row, piped in enumerate(data):
            document: Document = piped.metadata["document"]
            try:
                verdict = self._step.judge(document, rank, row)
            except (ValueError, ZeroDivisionError) as error:
                reason = f"{type(error).__name__}"
                source = document["source"]
                self._ledger.document_failed(reason, document["id"], source, str(error))
                continue
            if isinstance(verdict, Drop):
                self._drop(document, verdict)
                continue
            if verdict.evidence is not None:
                self._ledger.evidence.append(verdict.evidence)
            kept = {"document": verdict.document, "attributes": verdict.attributes}
            yield PipedDocument(text=verdict.document["text"], id=document["id"], metadata=kept)

    def _drop(self, document: Document, drop: Drop) -> None:
        if drop.evidence is not None:
            self._ledger.evidence.append(drop.evidence)
        where, source = document["id"], document["source"]
        self._ledger.document_dropped(drop.reason, where, source, document["text"])


class WriteShard(PipelineStep):
    """Writes the documents, their attributes and the evidence, and last the ledger.

    `names` are the files of the output shards, by task.
    """

    type = "writer"
    name = "dolma shard"

    def __init__(self, work: str, names: Sequence[str], attributes: Sequence[str], ledger: Ledger):
        super().__init__()
        self._work = work
        self._names = names
        self._attributes = attributes
        self._ledger = ledger

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> None:
        name = self._names[rank]
        files = {"documents": os.path.join("documents", name)}
        files |= {a: os.path.join("attributes", a, name) for a in self._attributes}
        shards = {key: ShardFile(os.path.join(self._work, path)) for key, path in files.items()}
        complete = False
        try:
            for piped in data:
                document: Document = piped.metadata["document"]
                shards["documents"].write(document)
                for attribute in self._attributes:
                    value = piped.metadata["attributes"][attribute]
                    span = [[0, len(document["text"]), value]]
                    shards[attribute].write({"id": document["id"], "attributes": {attribute: span}})
                self._ledger.document_kept(document["source"], len(document["text"]))
            complete = True
        finally:
            for shard in shards.values():
                shard.close(complete=complete)
        self._ledger.save(self._work, rank, [*files.values(), self._write_evidence(rank)])

    def _write_evidence(self, rank: int) -> str:
        path = os.path.join("evidence", f"{rank:05d}.jsonl")
        lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in self._ledger.evidence]
        os.makedirs(os.path.join(self._work, "evidence"), exist_ok=True)
        with open(os.path.join(self._work, path), "w", encoding="utf-8") as file:
            file.writelines(lines)
        return path
