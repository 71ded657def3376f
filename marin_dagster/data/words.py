"""Turns text into words, and words into hashed n-grams, the same way for every stage."""

import re
import unicodedata
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

_WORD = re.compile(r"\w+")
_ASCII_WORDS = "".join(  # lower case, and a space for what is between words
    char.lower() if _WORD.match(char) else " " for char in map(chr, range(128))
)
_SPACELESS = re.compile(  # Thai to Lao, Myanmar, Khmer, kana, Han: one character is one word
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]"
)
_BASE = 0x9E3779B97F4A7C13  # odd, so it has an inverse; 3 mod 8, so its powers differ early
_MIX = np.uint64(0xBF58476D1CE4E5B9)
_HALF = np.uint64(32)
_SPACE = np.uint8(32)
_HASHED_BYTES = 1 << 18  # at a time, so that a long text needs no more memory than its words


def words(text: str) -> list[str]:
    """Words without case, punctuation, width or line breaks.

    NFKC and case folding, then runs of letters and digits; in scripts that do not put spaces
    between words, single characters.
    """
    if text.isascii():
        return text.translate(_ASCII_WORDS).split()
    text = unicodedata.normalize("NFKC", text).casefold()
    return _WORD.findall(_SPACELESS.sub(r" \g<0> ", text))


def word_hashes(tokens: Sequence[str]) -> np.ndarray:
    """A 64-bit hash of each word, uint64[len(tokens)]."""
    return _hash_runs(" ".join(tokens).encode("utf-8", "replace"))


def text_hashes(text: str) -> np.ndarray:
    """`word_hashes(words(text))`, without the words."""
    if text.isascii():
        return _hash_runs(text.translate(_ASCII_WORDS).encode())
    return word_hashes(words(text))


def _hash_runs(data: bytes) -> np.ndarray:
    """Hash of each run of bytes between spaces: the sum of (byte[j] - 32) * base^j, mixed."""
    parts = []
    start = 0
    while start < len(data):
        end = data.find(b" ", start + _HASHED_BYTES)
        end = len(data) if end < 0 else end
        parts.append(_hash_part(np.frombuffer(data, np.uint8, end - start, start)))
        start = end
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.uint64)


def _hash_part(data: np.ndarray) -> np.ndarray:
    space = data == _SPACE
    begins = ~space
    begins[1:] &= space[:-1]
    starts = np.flatnonzero(begins)
    if not len(starts):
        return np.empty(0, dtype=np.uint64)
    lengths = np.diff(starts, append=len(data))  # with the spaces behind, which count as 0
    places = np.arange(starts[0], len(data)) - np.repeat(starts, lengths)
    powers, _ = _powers(1 << int(lengths.max()).bit_length())
    values = data[starts[0] :].astype(np.uint64)
    values -= np.uint64(_SPACE)
    values *= powers[places]
    return _mixed(np.add.reduceat(values, starts - starts[0]))


def _mixed(values: np.ndarray) -> np.ndarray:
    values ^= values >> _HALF
    values *= _MIX
    return values ^ (values >> _HALF)


def ngram_hashes(hashes: np.ndarray, ngram_size: int) -> np.ndarray:
    """Hash of each run of `ngram_size` words, uint64[max(0, len(hashes) - ngram_size + 1)].

    The polynomial sum of hash[j] * base^j modulo 2^64 over the run, from differences of prefix
    sums, so that the time does not grow with the size; then mixed.
    """
    count = len(hashes) - ngram_size + 1
    if count <= 0:
        return np.empty(0, dtype=np.uint64)
    powers, inverses = _powers(1 << len(hashes).bit_length())
    sums = np.zeros(len(hashes) + 1, dtype=np.uint64)
    np.cumsum(hashes * powers[: len(hashes)], out=sums[1:])
    grams = (sums[ngram_size:] - sums[:count]) * inverses[:count]
    return _mixed(grams)


@lru_cache(maxsize=32)
def _powers(count: int) -> tuple[np.ndarray, np.ndarray]:
    """base^i and base^-i modulo 2^64 for i < count, a power of two."""
    powers, inverses = np.ones(1, dtype=np.uint64), np.ones(1, dtype=np.uint64)
    while len(powers) < count:
        step = pow(_BASE, len(powers), 1 << 64)
        powers = np.concatenate([powers, powers * np.uint64(step)])
        inverses = np.concatenate([inverses, inverses * np.uint64(pow(step, -1, 1 << 64))])
    return powers, inverses


def jaccard(one: np.ndarray, other: np.ndarray) -> float:
    """Size of the intersection over size of the union of two sorted arrays of distinct hashes."""
    if not len(one) or not len(other):
        return 0.0
    shared = len(np.intersect1d(one, other, assume_unique=True))
    return shared / (len(one) + len(other) - shared)
