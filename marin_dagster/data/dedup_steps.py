"""Turns shards into digests, MinHash signatures and the groups that share a band of them.

Imported in worker processes only, because it imports datatrove.
"""

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import xxhash
from datatrove.data import Document as PipedDocument
from datatrove.pipeline.base import PipelineStep
from datatrove.pipeline.dedup.minhash import (
    MinhashConfig,
    MinhashDedupBuckets,
    MinhashDedupSignature,
)
from datatrove.utils.hashing import HashConfig
from datatrove.utils.word_tokenizers import WordTokenizer

from marin_dagster.data.dedup import MatchConfig
from marin_dagster.data.dedup_match import DIGEST, digest_file
from marin_dagster.data.shard_steps import Ledger, ReadShard
from marin_dagster.data.words import ngram_hashes, word_hashes, words


def signature_steps(work: str, paths: tuple[str, ...], config: MatchConfig) -> list[Any]:
    """One task per shard: digests for exact copies, signatures for near ones."""
    return [
        ReadShard(paths, Ledger()),
        DigestShard(work, config),
        NgramSignature(
            work,
            config=_minhash_config(config),
            language=_Words(),  # pyright: ignore[reportArgumentType]
        ),
    ]


def bucket_steps(signatures: str, work: str, config: MatchConfig) -> list[Any]:
    """One task per band: pairs of documents with the same hashes in it."""
    return [
        MinhashDedupBuckets(signatures, os.path.join(work, "pairs"), config=_minhash_config(config))
    ]


class DigestShard(PipelineStep):
    """Writes a digest of each document's words, and passes the words on as its text."""

    type = "dedup"
    name = "digests"

    def __init__(self, work: str, config: MatchConfig):
        super().__init__()
        self._work = work
        self._config = config

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> Iterator[PipedDocument]:
        rows: list[tuple[int, int, int, int]] = []
        for piped in data:
            text = " ".join(words(piped.text))
            digest = xxhash.xxh3_128_digest(text.encode("utf-8", "replace"))
            high, low = np.frombuffer(digest, dtype=np.uint64).tolist()
            rows.append((high, low, text.count(" ") + 1 if text else 0, len(piped.text)))
            seen = text if len(text) <= self._config.max_characters else self._cut(text)
            yield PipedDocument(text=seen, id=piped.id)
        path = digest_file(self._work, rank)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        np.save(path, np.array(rows, dtype=DIGEST))

    def _cut(self, text: str) -> str:
        return text[: self._config.max_characters].rpartition(" ")[0]


class NgramSignature(MinhashDedupSignature):
    """MinHash over the same n-gram hashes that verification compares, computed in arrays."""

    def get_shingles(self, text: str) -> np.ndarray:
        """Hashes of the distinct n-grams of normalised words, uint64[n-grams, 1]."""
        grams = ngram_hashes(word_hashes(text.split()), self.config.n_grams)
        return np.unique(grams).reshape(-1, 1)


class _Words(WordTokenizer):
    """Splits normalised text; given so that no language package is asked for."""

    def word_tokenize(self, text: str) -> list[str]:
        return text.split()

    def sent_tokenize(self, text: str) -> list[str]:
        raise NotImplementedError

    def span_tokenize(self, text: str) -> list[tuple[int, int]]:
        raise NotImplementedError


def _minhash_config(config: MatchConfig) -> MinhashConfig:
    return MinhashConfig(
        n_grams=config.ngram_size,
        num_buckets=config.num_bands,
        hashes_per_bucket=config.rows_per_band,
        seed=config.seed,
        hash_config=HashConfig(precision=64),
    )
