"""Turns text into words, and words into hashed n-grams, the same way for every stage."""

import re
import unicodedata
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import xxhash

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
    """64-bit xxh3 of each word, uint64[len(tokens)]."""
    return np.fromiter(map(_word_hash, tokens), dtype=np.uint64, count=len(tokens))


@lru_cache(maxsize=1 << 17)
def _word_hash(token: str) -> int:
    return xxhash.xxh3_64_intdigest(token.encode("utf-8", "replace"))


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
    grams ^= grams >> _HALF
    grams *= _MIX
    return grams ^ (grams >> _HALF)


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
