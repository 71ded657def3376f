"""Turns shards into hashes of their paragraphs.

Imported in worker processes only, because it imports datatrove.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import xxhash
from datatrove.data import Document as PipedDocument
from datatrove.pipeline.base import PipelineStep

from marin_dagster.data.arrays import array_file, save_array
from marin_dagster.data.paragraphs import Unit, split
from marin_dagster.data.shard_steps import Ledger, ReadShard
from marin_dagster.data.words import text_hashes


def hash_steps(work: str, paths: Sequence[str], unit: Unit, min_words: int) -> list[Any]:
    """One task per shard."""
    return [ReadShard(paths, Ledger()), HashParagraphs(work, unit, min_words)]


class HashParagraphs(PipelineStep):
    """Writes a hash and the length of every paragraph, where documents begin, and their ids.

    The hash of a paragraph that is too short to be a repeat is 0.
    """

    type = "dedup"
    name = "paragraphs"

    def __init__(self, work: str, unit: Unit, min_words: int):
        super().__init__()
        self._work = work
        self._unit: Unit = unit
        self._min_words = min_words

    def run(self, data: Iterator[PipedDocument], rank: int = 0, world_size: int = 1) -> None:
        hashes: list[int] = []
        characters: list[int] = []
        starts: list[int] = [0]
        ids: list[bytes] = []
        for piped in data:
            for part, _ in split(piped.text, self._unit):
                found = text_hashes(part)
                long = len(found) >= self._min_words
                hashes.append(xxhash.xxh3_64_intdigest(found.tobytes()) if long else 0)
                characters.append(len(part))
            starts.append(len(hashes))
            ids.append(piped.id.encode())
        save_array(array_file(self._work, "hashes", rank), np.array(hashes, dtype=np.uint64))
        save_array(array_file(self._work, "characters", rank), np.array(characters, dtype=np.int64))
        save_array(array_file(self._work, "starts", rank), np.array(starts, dtype=np.int64))
        save_array(array_file(self._work, "ids", rank), np.array(ids, dtype=np.bytes_))
