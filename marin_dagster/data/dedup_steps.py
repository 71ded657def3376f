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
from datatrove.utils.text import TextNormConfig
from datatrove.utils.word_tokenizers import WordTokenizer

from marin_dagster.data.dedup import MatchConfig
from marin_dagster.data.dedup_match import DIGEST, digest_file
from marin_dagster.data.shard_steps import Ledger, ReadShard
from marin_dagster.data.words import words

_NO_NORMALISATION = TextNormConfig(  # our words() does it; folding numbers would join tables
    lowercase=False,
    norm_whitespace=False,
    remove_punctuation=False,
    norm_unicode_diacritics=False,
    norm_numbers=False,
    norm_weekdays=False,
    norm_monthnames=False,
)


def signature_steps(work: str, paths: tuple[str, ...], config: MatchConfig) -> list[Any]:
    """One task per shard: digests for exact copies, signatures for near ones."""
    return [
        ReadShard(paths, Ledger()),
        DigestShard(work, config),
        MinhashDedupSignature(
            work,
            config=_minhash_config(config),
            language=_Words(),  # pyright: ignore
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


class _Words(WordTokenizer):
    """Splits text that `words` has already normalised."""

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
        norm_config=_NO_NORMALISATION,
        hash_config=HashConfig(precision=64, hash_fc="xxhash"),
    )
