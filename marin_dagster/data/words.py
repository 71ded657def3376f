"""Turns text into words, and words into hashed n-grams, the same way for every stage."""

import re
import unicodedata
from collections.abc import Sequence

import numpy as np
import xxhash

_WORD = re.compile(r"\w+")
_SPACELESS = re.compile(  # Thai to Lao, Myanmar, Khmer, kana, Han: one character is one word
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]"
)
_MIX = np.uint64(0x9E3779B97F4A7C15)
_STEP = np.uint64(0xBF58476D1CE4E5B9)


def words(text: str) -> list[str]:
    """Words without case, punctuation, width or line breaks.

    NFKC and case folding, then runs of letters and digits; in scripts that do not put spaces
    between words, single characters.
    """
    if text.isascii():
        return _WORD.findall(text.lower())
    text = unicodedata.normalize("NFKC", text).casefold()
    return _WORD.findall(_SPACELESS.sub(r" \g<0> ", text))


def word_hashes(tokens: Sequence[str]) -> np.ndarray:
    """64-bit xxh3 of each word, uint64[len(tokens)]."""
    known = {
        token: xxhash.xxh3_64_intdigest(token.encode("utf-8", "replace")) for token in set(tokens)
    }
    return np.fromiter((known[token] for token in tokens), dtype=np.uint64, count=len(tokens))


def ngram_hashes(hashes: np.ndarray, ngram_size: int) -> np.ndarray:
    """Hash of each run of `ngram_size` words, uint64[max(0, len(hashes) - ngram_size + 1)]."""
    count = len(hashes) - ngram_size + 1
    if count <= 0:
        return np.empty(0, dtype=np.uint64)
    result = np.zeros(count, dtype=np.uint64)
    for offset in range(ngram_size):
        result = (result ^ hashes[offset : offset + count]) * _MIX
        result ^= result >> np.uint64(29)
        result = result * _STEP
    return result


def jaccard(one: np.ndarray, other: np.ndarray) -> float:
    """Size of the intersection over size of the union of two sorted arrays of distinct hashes."""
    if not len(one) or not len(other):
        return 0.0
    shared = len(np.intersect1d(one, other, assume_unique=True))
    return shared / (len(one) + len(other) - shared)
