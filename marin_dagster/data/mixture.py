"""Turns weighted token caches into batches by step number, so that a resume needs no state.

Shapes: B rows of a batch, S tokens of a row.
"""

import functools
import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import xxhash
from jaxtyping import Float32, Int32

from marin_dagster.data.token_cache import TokenCacheReader

BLOCK = 2_048  # rows after which the sources' shares repeat
PADDING = -1  # segment id where a row holds no token


class Row(NamedTuple):
    """One row; `targets[t]` is the token after `tokens[t]`, weighted 0 in another document."""

    tokens: Int32[np.ndarray, " S"]
    targets: Int32[np.ndarray, " S"]
    loss_weights: Float32[np.ndarray, " S"]
    segment_ids: Int32[np.ndarray, " S"]  # document within the row, -1 for padding


class Batch(NamedTuple):
    """Rows of one step, and the source that each came from."""

    tokens: Int32[np.ndarray, "B S"]
    targets: Int32[np.ndarray, "B S"]
    loss_weights: Float32[np.ndarray, "B S"]
    segment_ids: Int32[np.ndarray, "B S"]
    sources: Int32[np.ndarray, " B"]


class Rows:
    """Cuts a cache into rows: documents end to end, conversations whole, as many as fit.

    The last row, and every row of conversations, is padded. Raises ValueError when a conversation
    is longer than a row.
    """

    def __init__(self, reader: TokenCacheReader, seq_len: int):
        self.reader, self.seq_len = reader, seq_len
        if reader.packing == "whole":
            self._bounds = _whole_documents(reader, seq_len)
            self.num_rows = len(self._bounds) - 1
        else:
            self._bounds = None
            self.num_rows = max(1, math.ceil((reader.num_tokens - 1) / seq_len))

    def row(self, index: int) -> Row:
        """Row `index` of the cache, in the order of its documents."""
        reader = self.reader
        if self._bounds is None:
            start = index * self.seq_len
            stop = min(start + self.seq_len, reader.num_tokens)
        else:
            start, stop = int(self._bounds[index]), int(self._bounds[index + 1])
        size, ahead = stop - start, min(stop + 1, reader.num_tokens) - start - 1
        document = np.searchsorted(reader.offsets, np.arange(start, stop + 1), side="right") - 1
        tokens = np.full(self.seq_len, reader.pad_id, np.int32)
        targets = np.full(self.seq_len, reader.pad_id, np.int32)
        weights = np.zeros(self.seq_len, np.float32)
        segments = np.full(self.seq_len, PADDING, np.int32)
        tokens[:size] = reader.tokens[start:stop]
        targets[:ahead] = reader.tokens[start + 1 : start + 1 + ahead]
        segments[:size] = document[:size] - document[0]
        same = document[1 : ahead + 1] == document[:ahead]
        given = 1.0 if reader.weights is None else reader.weights[start + 1 : start + 1 + ahead]
        weights[:ahead] = same * given
        return Row(tokens, targets, weights, segments)


class Mixture:
    """Batches from weighted sources, by step.

    Each source is read in its own order, which depends on the seed, its name and the epoch only:
    another source, weight or batch size leaves it unchanged. Sources are interleaved by always
    taking the one that is furthest behind its weight, so any stretch of rows keeps the weights.

    Raises ValueError that names the source for a missing or extra weight, a weight that is not
    positive or that never gets a row, and for caches of different tokenizers.
    """

    def __init__(
        self,
        readers: Mapping[str, TokenCacheReader],
        weights: Mapping[str, float],
        seq_len: int,
        batch_size: int,
        seed: int,
        num_steps: int | None = None,
    ):
        _check(readers, weights)
        self.names = tuple(readers)
        self.seq_len, self.batch_size, self.seed = seq_len, batch_size, seed
        self._rows = [Rows(reader, seq_len) for reader in readers.values()]
        total = sum(weights.values())
        shares = np.array([weights[name] / total for name in self.names])
        self._pattern = interleave(shares, BLOCK)
        self._per_block = np.bincount(self._pattern, minlength=len(shares))
        self._earlier = _earlier_occurrences(self._pattern)
        used = BLOCK if num_steps is None else min(BLOCK, num_steps * batch_size)
        seen = np.bincount(self._pattern[:used], minlength=len(shares))
        for name, share, count in zip(self.names, shares, seen, strict=True):
            if count == 0:
                raise ValueError(
                    f"weight={share:g} of source {name!r} gives it none of {used} rows; "
                    "raise the weight, train longer, or leave the source out"
                )

    def batch(self, step: int) -> Batch:
        """The rows of a step."""
        first = step * self.batch_size
        places = [self._place(first + i) for i in range(self.batch_size)]
        rows = [self._rows[source].row(index) for source, index in places]
        return Batch(
            tokens=np.stack([row.tokens for row in rows]),
            targets=np.stack([row.targets for row in rows]),
            loss_weights=np.stack([row.loss_weights for row in rows]),
            segment_ids=np.stack([row.segment_ids for row in rows]),
            sources=np.array([source for source, _ in places], np.int32),
        )

    def epochs(self, step: int) -> dict[str, float]:
        """How often each source has been read before a step."""
        blocks, rest = divmod(step * self.batch_size, BLOCK)
        partial = np.bincount(self._pattern[:rest], minlength=len(self.names))
        read = blocks * self._per_block + partial
        return {
            name: float(count / rows.num_rows)
            for name, count, rows in zip(self.names, read, self._rows, strict=True)
        }

    def _place(self, index: int) -> tuple[int, int]:
        """The source and its row that stand at a place of the endless sequence."""
        block, within = divmod(index, BLOCK)
        source = int(self._pattern[within])
        nth = block * int(self._per_block[source]) + int(self._earlier[within])
        num_rows = self._rows[source].num_rows
        epoch, place = divmod(nth, num_rows)
        return source, int(permutation(self.seed, self.names[source], epoch, num_rows)[place])


def interleave(shares: Float32[np.ndarray, " N"] | np.ndarray, length: int) -> np.ndarray:
    """A sequence of sources in which each prefix holds them by their shares, within one row."""
    counts = np.zeros(len(shares))
    pattern = np.empty(length, np.int32)
    for place in range(length):
        pattern[place] = np.argmax(shares * (place + 1) - counts)
        counts[pattern[place]] += 1
    return pattern


@functools.lru_cache(maxsize=64)
def permutation(seed: int, name: str, epoch: int, length: int) -> np.ndarray:
    """The order of a source's rows in an epoch; stable across NumPy versions and machines."""
    key = xxhash.xxh3_128_intdigest(f"{seed}/{epoch}/{name}".encode())
    bits = np.random.Philox(key=key).random_raw(length)
    return np.argsort(bits, kind="stable")


def _whole_documents(reader: TokenCacheReader, seq_len: int) -> np.ndarray:
    """Token offsets of rows that begin and end with a document."""
    offsets = np.asarray(reader.offsets)
    longest = int(np.diff(offsets).max())
    if longest > seq_len:
        raise ValueError(
            f"{reader.folder} holds a conversation of {longest} tokens, more than "
            f"seq_len={seq_len}; tokenize with seq_len={seq_len} or train with longer rows"
        )
    bounds = [0]
    while bounds[-1] < offsets[-1]:
        last = np.searchsorted(offsets, bounds[-1] + seq_len, side="right") - 1
        bounds.append(int(offsets[last]))
    return np.array(bounds)


def _earlier_occurrences(pattern: np.ndarray) -> np.ndarray:
    """For each place, how many earlier places hold the same source."""
    earlier = np.empty_like(pattern)
    for source in np.unique(pattern):
        places = np.flatnonzero(pattern == source)
        earlier[places] = np.arange(len(places))
    return earlier


def _check(readers: Mapping[str, TokenCacheReader], weights: Mapping[str, float]) -> None:
    if not readers:
        raise ValueError("a mixture of no sources has no rows; give at least one token cache")
    for name in sorted(readers.keys() ^ weights.keys()):
        lacking = "weight" if name in readers else "token cache"
        raise ValueError(f"source {name!r} has no {lacking}; give every source one of each")
    for name, weight in weights.items():
        if not (math.isfinite(weight) and weight > 0):
            raise ValueError(
                f"weight={weight} of source {name!r} is not positive, so it would never be "
                "sampled; give it a positive weight or leave it out"
            )
    tokenizers = {reader.meta["tokenizer"] for reader in readers.values()}
    if len(tokenizers) > 1:
        listed = ", ".join(
            f"{name}: {reader.meta['tokenizer']}" for name, reader in readers.items()
        )
        raise ValueError(
            f"sources come from different tokenizers ({listed}); tokenize them with the same one"
        )
