"""Turns places into places: pseudo-random permutations of any length, without tables.

A Feistel network (Luby and Rackoff 1988) over the bits of the length, walked until it lands below
the length again. Only integer arithmetic: the same on every machine and version of NumPy.
"""

import numpy as np
import xxhash
from jaxtyping import Int64, UInt64

ROUNDS = 10
MIN_BITS = 6  # below, the network would reach too few of the permutations
GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def permutation_key(seed: int, name: str, epoch: int) -> int:
    """The key of one epoch of a source: 64 bits."""
    return xxhash.xxh3_64_intdigest(f"{seed}/{epoch}/{name}".encode())


def permute(
    places: Int64[np.ndarray, " N"],
    lengths: Int64[np.ndarray, " N"],
    keys: UInt64[np.ndarray, " N"],
) -> Int64[np.ndarray, " N"]:
    """Where each place, from 0 to below its length, goes in the permutation of its key."""
    limit = lengths.astype(np.uint64)
    bits = np.maximum(np.frexp((lengths - 1).astype(np.float64))[1], MIN_BITS)
    low = ((bits + 1) // 2).astype(np.uint64)
    high = bits.astype(np.uint64) - low
    found = _network(places.astype(np.uint64), low, high, keys)
    outside = np.flatnonzero(found >= limit)
    while outside.size:
        found[outside] = _network(found[outside], low[outside], high[outside], keys[outside])
        outside = outside[found[outside] >= limit[outside]]
    return found.astype(np.int64)


def _network(value: np.ndarray, low: np.ndarray, high: np.ndarray, keys: np.ndarray) -> np.ndarray:
    one = np.uint64(1)
    low_mask, high_mask = (one << low) - one, (one << high) - one
    left, right = value >> low, value & low_mask
    for number in range(0, ROUNDS, 2):
        left = left ^ (_scramble(right, keys, number) & high_mask)
        right = right ^ (_scramble(left, keys, number + 1) & low_mask)
    return (left << low) | right


def _scramble(half: np.ndarray, keys: np.ndarray, number: int) -> np.ndarray:
    """Well mixed bits of a half, a key and a round (the finaliser of Steele et al. 2014)."""
    with np.errstate(over="ignore"):
        mixed = keys + half + GOLDEN * np.uint64(number + 1)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed >> np.uint64(32)
