"""Turns the n-grams of a document into MinHash band keys: near copies share at least one of them.

A band is a run of rows, each the lowest value that one random function gives to any n-gram. Two
documents of Jaccard similarity s agree in a row with probability s, in a band with s^rows, and in
any band with 1 - (1 - s^rows)^bands (Broder 1997; Leskovec, Rajaraman, Ullman 2014, section 3.4).
"""

from collections.abc import Sequence

import numpy as np

_CHUNK = 4096  # n-grams at a time, so that a long document needs no more memory than a short one
_MIX = np.uint64(0xBF58476D1CE4E5B9)
_HALF = np.uint64(32)


class MinHash:
    """Random functions h -> a * h + b modulo 2^32 with odd a, drawn from a seed."""

    def __init__(self, num_bands: int, rows_per_band: int, seed: int):
        rng = np.random.default_rng(seed)
        count = num_bands * rows_per_band
        self._shape = num_bands, rows_per_band
        self._factors = rng.integers(1 << 32, size=count, dtype=np.uint32) | np.uint32(1)
        self._offsets = rng.integers(1 << 32, size=count, dtype=np.uint32)
        self._weights = rng.integers(1 << 63, size=rows_per_band, dtype=np.uint64) | np.uint64(1)

    def rows(self, grams: np.ndarray) -> np.ndarray:
        """The lowest value of each function over n-gram hashes uint64[n], uint32[rows]."""
        if not len(grams):
            return np.zeros(len(self._factors), dtype=np.uint32)
        grams = grams.astype(np.uint32)
        parts = []
        for start in range(0, len(grams), _CHUNK):
            values = np.multiply.outer(grams[start : start + _CHUNK], self._factors)
            values += self._offsets
            parts.append(values.min(axis=0))
        return parts[0] if len(parts) == 1 else np.min(parts, axis=0)

    def band_keys(self, rows: Sequence[np.ndarray]) -> np.ndarray:
        """One hash of the rows of each band, uint64[bands, documents]."""
        table = np.array(rows, dtype=np.uint64).reshape(-1, *self._shape)
        keys = np.ascontiguousarray((table * self._weights).sum(axis=2, dtype=np.uint64).T)
        keys ^= keys >> _HALF
        keys *= _MIX
        return keys ^ (keys >> _HALF)
