"""Turns shards into digests and MinHash band keys, and into the n-grams of proposed documents.

Imported in worker processes only, because it imports datatrove.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import xxhash
from datatrove.pipeline.base import PipelineStep

from marin_dagster.data.arrays import array_file, save_array
from marin_dagster.data.dedup import MatchConfig
from marin_dagster.data.dedup_match import DIGEST
from marin_dagster.data.documents import scan_shard
from marin_dagster.data.minhash import MinHash
from marin_dagster.data.words import ngram_hashes, text_hashes

_BATCH = 1_000  # documents


def sign_steps(work: str, paths: Sequence[str], config: MatchConfig) -> list[Any]:
    """One task per shard: digests for exact copies, band keys for near ones, and ids."""
    return [SignShard(work, paths, config)]


def gram_steps(signed: str, work: str, paths: Sequence[str], config: MatchConfig) -> list[Any]:
    """One task per shard: the n-grams of the documents that are to be compared."""
    return [WriteGrams(signed, work, paths, config)]


class SignShard(PipelineStep):
    """Writes a digest, the band keys and the id of every document, and the line it stands in."""

    type = "dedup"
    name = "sign"

    def __init__(self, work: str, paths: Sequence[str], config: MatchConfig):
        super().__init__()
        self._work = work
        self._paths = paths
        self._config = config

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> None:
        config = self._config
        minhash = MinHash(config.num_bands, config.rows_per_band, config.seed)
        digests: list[tuple[int, ...]] = []
        rows: list[np.ndarray] = []
        keys: list[np.ndarray] = []
        ids: list[bytes] = []
        for line, document in scan_shard(self._paths[rank]):
            if isinstance(document, ValueError):
                continue
            text = document["text"]
            hashes = text_hashes(text)
            grams = ngram_hashes(_compared(text, hashes, config), config.ngram_size)
            digest = xxhash.xxh3_128_digest(hashes.tobytes())
            high, low = np.frombuffer(digest, dtype=np.uint64).tolist()
            digests.append((high, low, len(hashes), len(text), len(grams), line))
            ids.append(document["id"].encode())
            rows.append(minhash.rows(grams))
            if len(rows) == _BATCH:
                keys.append(minhash.band_keys(rows))
                rows = []
        keys.append(minhash.band_keys(rows))
        save_array(array_file(self._work, "keys", rank), np.concatenate(keys, axis=1))
        save_array(array_file(self._work, "ids", rank), np.array(ids, dtype=np.bytes_))
        save_array(array_file(self._work, "digests", rank), np.array(digests, dtype=DIGEST))


class WriteGrams(PipelineStep):
    """Writes the sorted distinct n-gram hashes of the lines that a file names, and their edges."""

    type = "dedup"
    name = "n-grams"

    def __init__(self, signed: str, work: str, paths: Sequence[str], config: MatchConfig):
        super().__init__()
        self._signed = signed
        self._work = work
        self._paths = paths
        self._config = config

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> None:
        chosen = set(np.load(array_file(self._signed, "chosen", rank)).tolist())
        grams = [np.empty(0, dtype=np.uint64)]
        for _, document in scan_shard(self._paths[rank], chosen):
            assert not isinstance(document, ValueError)
            text = document["text"]
            hashes = _compared(text, text_hashes(text), self._config)
            grams.append(np.unique(ngram_hashes(hashes, self._config.ngram_size)))
        edges = np.cumsum([len(found) for found in grams])
        save_array(array_file(self._work, "edges", rank), edges)
        save_array(array_file(self._work, "grams", rank), np.concatenate(grams))


def _compared(text: str, hashes: np.ndarray, config: MatchConfig) -> np.ndarray:
    """Hashes of the words that count for similarity: those of the beginning of a long text."""
    if len(text) <= config.max_characters:
        return hashes
    return hashes[: len(text_hashes(text[: config.max_characters]))]
