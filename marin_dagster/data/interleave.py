"""Turns weights into an endless sequence of sources, any place of which is found directly.

A Huffman tree of the sources splits the sequence: of the first n places, a fork gives its lighter
side round(n·p) and the other side the rest. So every prefix keeps the weights, however small, and
nothing repeats after some period.
"""

import heapq
from collections.abc import Mapping
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from jaxtyping import Int64

HALF = 1 << 63
LOW = np.uint64(0xFFFFFFFF)
SHIFT = np.uint64(32)


class _Fork(NamedTuple):
    share: int  # of the lighter side, in 2^-64
    lighter: int  # a fork, or ~source
    heavier: int


class Interleave:
    """The sequence of sources of some weights; it does not depend on the order they are listed in.

    A source's count among the first n is within 2 of n times its share: a fork above another fork
    has at most two thirds on one side, and each rounds by at most a half.
    """

    def __init__(self, weights: Mapping[str, float]):
        self.names = tuple(weights)
        total = sum(Fraction(weight) for weight in weights.values())
        self.shares = {name: float(Fraction(weight) / total) for name, weight in weights.items()}
        self._forks, self._root = _tree(weights)
        self._share = np.array([fork.share for fork in self._forks], np.uint64)
        self._sides = np.array([fork[1:] for fork in self._forks], np.int64).reshape(-1, 2)

    def counts(self, length: int) -> dict[str, int]:
        """How many of the first `length` places each source has."""
        found = dict.fromkeys(self.names, 0)
        pending = [(self._root, length)]
        while pending:
            node, size = pending.pop()
            if node < 0:
                found[self.names[~node]] = size
                continue
            fork = self._forks[node]
            lighter = (size * fork.share + HALF) >> 64
            pending += [(fork.lighter, lighter), (fork.heavier, size - lighter)]
        return found

    def at(
        self, places: Int64[np.ndarray, " N"]
    ) -> tuple[Int64[np.ndarray, " N"], Int64[np.ndarray, " N"]]:
        """The source at each place (an index into `names`), and how often it stood before it."""
        node = np.full(places.shape, self._root, np.int64)
        nth = places.astype(np.uint64)
        inner = np.flatnonzero(node >= 0)
        while inner.size:
            at, size = node[inner], nth[inner]
            share = self._share[at]
            before = _round_product(size, share)
            lighter = _round_product(size + np.uint64(1), share) > before
            nth[inner] = np.where(lighter, before, size - before)
            node[inner] = self._sides[at, np.where(lighter, 0, 1)]
            inner = inner[node[inner] >= 0]
        return ~node, nth.astype(np.int64)


def _tree(weights: Mapping[str, float]) -> tuple[list[_Fork], int]:
    """Forks, and the node at the top."""
    heap = [(Fraction(weight), name, ~i) for i, (name, weight) in enumerate(weights.items())]
    heapq.heapify(heap)
    forks: list[_Fork] = []
    while len(heap) > 1:
        light, name, lighter = heapq.heappop(heap)
        heavy, _, heavier = heapq.heappop(heap)
        forks.append(_Fork(int(light / (light + heavy) * 2**64), lighter, heavier))
        heapq.heappush(heap, (light + heavy, name, len(forks) - 1))
    return forks, heap[0][2]


def _round_product(size: np.ndarray, share: np.ndarray) -> np.ndarray:
    """round(size · share / 2^64), exactly, from products of 32 bits."""
    size_high, size_low = size >> SHIFT, size & LOW
    share_high, share_low = share >> SHIFT, share & LOW
    low = size_low * share_low
    middle = size_high * share_low + (low >> SHIFT)
    other = size_low * share_high + (middle & LOW)
    whole = size_high * share_high + (middle >> SHIFT) + (other >> SHIFT)
    return whole + ((other >> np.uint64(31)) & np.uint64(1))
