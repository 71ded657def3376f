"""Turns digests and band keys into removals, each with a kept document that justifies it.

A document is a number: its place in the order of all shards, earlier artifacts first. What grows
with the corpus is in arrays; Python objects exist for documents that MinHash proposes.
"""

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from marin_dagster.data.arrays import array_file, load_array, save_array
from marin_dagster.data.dedup import MatchConfig
from marin_dagster.data.row_files import save_rows
from marin_dagster.data.words import jaccard

DIGEST = np.dtype(
    [
        ("high", "u8"),
        ("low", "u8"),
        ("words", "i8"),
        ("characters", "i8"),
        ("grams", "i8"),
        ("line", "i8"),
    ]
)
_MIX = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class Corpus:
    """What the workers wrote about all shards; the first `num_earlier_shards` are not judged."""

    signed: str
    grams: str
    owners: Sequence[str]  # address of the artifact of each shard
    num_earlier_shards: int

    @cached_property
    def digests(self) -> np.ndarray:
        return np.concatenate(
            [load_array(array_file(self.signed, "digests", s)) for s in self._shards]
        )

    @cached_property
    def starts(self) -> np.ndarray:
        """Number of the first document of each shard, and of all documents."""
        sizes = [
            len(load_array(array_file(self.signed, "digests", shard))) for shard in self._shards
        ]
        return np.cumsum([0, *sizes])

    @property
    def num_earlier(self) -> int:
        return int(self.starts[self.num_earlier_shards])

    def band(self, band: int) -> np.ndarray:
        """The keys of all documents in a band."""
        return np.concatenate(
            [load_array(array_file(self.signed, "keys", s))[band] for s in self._shards]
        )

    def place(self, number: int) -> tuple[int, int]:
        """Shard and row of a document."""
        shard = int(np.searchsorted(self.starts, number, side="right")) - 1
        return shard, number - int(self.starts[shard])

    def id(self, number: int) -> str:
        shard, row = self.place(number)
        return load_array(array_file(self.signed, "ids", shard))[row].decode()

    @property
    def _shards(self) -> range:
        return range(len(self.owners))


@dataclass(frozen=True)
class Groups:
    """Sets of documents that agree in a band, each once, with the number of bands they share."""

    members: np.ndarray  # int64: documents, group by group
    starts: np.ndarray  # int64[groups + 1]
    weights: np.ndarray  # int64[groups]: bands


@dataclass(frozen=True)
class Proposal:
    """What exact comparison found, and what is left to compare."""

    empty: np.ndarray  # documents without words
    stands: np.ndarray  # int64[documents]: the best exact copy of each, perhaps itself
    rank: np.ndarray  # int64[documents]: of similar ones, the lowest is kept
    groups: Groups


def propose(corpus: Corpus, config: MatchConfig) -> Proposal:
    """Exact copies, and groups of near ones; names the lines whose n-grams are needed."""
    digests = corpus.digests
    rank = _rank(digests, corpus.num_earlier, config)
    stands = _exact_copies(digests, rank)
    active = np.flatnonzero((digests["grams"] > 0) & (stands == np.arange(len(stands))))
    groups = _groups(corpus, active, config)
    needed = np.unique(groups.members)
    for shard in range(len(corpus.owners)):
        first, last = np.searchsorted(needed, corpus.starts[shard : shard + 2])
        lines = digests["line"][needed[first:last]]
        save_array(array_file(corpus.signed, "chosen", shard), lines)
    return Proposal(np.flatnonzero(digests["words"] == 0), stands, rank, groups)


def verify(
    corpus: Corpus, found: Proposal, config: MatchConfig
) -> tuple[dict[int, dict[str, Any]], dict[str, int]]:
    """Removals by document number, and what was counted on the way."""
    near, counted = _near_copies(corpus, found, config)
    removals: dict[int, dict[str, Any]] = {}
    for number, (kept, similarity) in near.items():
        removals[number] = {"kept": kept, "similarity": round(similarity, 6), "kind": "fuzzy"}
    for number in np.flatnonzero(found.stands != np.arange(len(found.stands))).tolist():
        # if the copy that stood for the others went, name what stands now
        kept, similarity = near.get(int(found.stands[number]), (int(found.stands[number]), 1.0))
        removals[number] = {"kept": kept, "similarity": round(similarity, 6), "kind": "exact"}
    removals |= {number: {"kind": "empty"} for number in found.empty.tolist()}
    removals = {n: row for n, row in sorted(removals.items()) if n >= corpus.num_earlier}
    earlier = sum(
        row.get("kept", corpus.num_earlier) < corpus.num_earlier for row in removals.values()
    )
    own = corpus.digests[corpus.num_earlier :]
    short = int(((own["words"] > 0) & (own["words"] < config.ngram_size)).sum())
    counted |= {"copies_of_earlier": earlier, "short_documents": short}
    return removals, counted


def save_removals(folder: str, corpus: Corpus, removals: Mapping[int, Mapping[str, Any]]) -> None:
    """Writes the removals of each judged shard by row, with the id and artifact of what is kept."""
    rows: list[dict[int, Any]] = [{} for _ in corpus.owners]
    for number, removal in removals.items():
        shard, row = corpus.place(number)
        rows[shard][row] = dict(removal)
        if "kept" in removal:
            kept = removal["kept"]
            owner = corpus.owners[corpus.place(kept)[0]]
            rows[shard][row] |= {"kept": corpus.id(kept), "kept_in": owner}
    for shard, found in enumerate(rows[corpus.num_earlier_shards :]):
        save_rows(folder, shard, found)


def _rank(digests: np.ndarray, num_earlier: int, config: MatchConfig) -> np.ndarray:
    """Position of each document in the order of preference; earlier artifacts come first."""
    numbers = np.arange(len(digests))
    if not config.keep_longest:
        return numbers
    own = numbers >= num_earlier
    order = np.lexsort((numbers, -digests["characters"], -digests["words"], own))
    rank = np.empty_like(numbers)
    rank[order] = numbers
    return rank


def _exact_copies(digests: np.ndarray, rank: np.ndarray) -> np.ndarray:
    order = np.lexsort((rank, digests["low"], digests["high"]))
    pairs = np.stack([digests["high"][order], digests["low"][order]])
    firsts = np.flatnonzero(np.append(True, (pairs[:, 1:] != pairs[:, :-1]).any(axis=0)))
    stands = np.empty(len(digests), dtype=np.int64)
    stands[order] = np.repeat(order[firsts], np.diff(np.append(firsts, len(order))))
    return stands


def _groups(corpus: Corpus, active: np.ndarray, config: MatchConfig) -> Groups:
    """Groups of all bands, without repeats and without those of earlier documents only."""
    members, sizes, prints = [], [], []
    for band in range(config.num_bands):
        keys = corpus.band(band)[active]
        order = np.argsort(keys, kind="stable")
        edges = np.flatnonzero(np.append(True, keys[order[1:]] != keys[order[:-1]]))
        lengths = np.diff(np.append(edges, len(order)))
        inside = active[order][np.repeat(lengths > 1, lengths)]
        lengths = lengths[lengths > 1]
        members.append(inside)
        sizes.append(lengths)
        mixed = (inside.astype(np.uint64) + np.uint64(1)) * _MIX
        mixed ^= mixed >> np.uint64(29)
        mixed *= _MIX
        prints.append(_sums(mixed, lengths))
    return _distinct(np.concatenate(members), np.concatenate(sizes), np.concatenate(prints), corpus)


def _distinct(members: np.ndarray, sizes: np.ndarray, prints: np.ndarray, corpus: Corpus) -> Groups:
    _, chosen, weights = np.unique(prints, return_index=True, return_counts=True)
    starts = np.cumsum(np.append(0, sizes))
    judged = _sums(members >= corpus.num_earlier, sizes)[chosen] > 0
    chosen, weights = chosen[judged], weights[judged]
    sizes = sizes[chosen]
    ends = np.cumsum(sizes)
    places = np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - sizes, sizes)
    kept = members[places + np.repeat(starts[chosen], sizes)]
    return Groups(kept, np.append(0, ends), weights)


def _sums(values: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Sums of consecutive runs of the given sizes, all above zero."""
    if not len(sizes):
        return np.empty(0, dtype=np.uint64)
    dtype = values.dtype if values.dtype == np.uint64 else np.int64
    return np.add.reduceat(values, np.cumsum(sizes) - sizes, dtype=dtype)


def _near_copies(
    corpus: Corpus, found: Proposal, config: MatchConfig
) -> tuple[dict[int, tuple[int, float]], dict[str, int]]:
    """Each near copy with the kept document that it copies, and their similarity.

    Documents come in order of rank, so that everyone who could stand for a document was decided
    before it. A group remembers the first `max_comparisons` kept ones.
    """
    kept_in: list[list[int]] = [[] for _ in found.groups.weights]
    weights = found.groups.weights.tolist()
    overflown: set[int] = set()
    grams = _Grams(corpus, found.groups)
    near: dict[int, tuple[int, float]] = {}
    counted = Counter(candidates=0, comparisons=0, comparisons_cut=0)
    for number, groups in _by_rank(found):
        if number >= corpus.num_earlier:
            shared: Counter[int] = Counter()
            for group in groups:
                for kept in kept_in[group]:
                    shared[kept] += weights[group]
            rivals = sorted(shared, key=lambda kept: (-shared[kept], kept))
            copied, tried = _first_similar(number, rivals[: config.max_comparisons], grams, config)
            cut = len(rivals) > config.max_comparisons or not overflown.isdisjoint(groups)
            counted.update(candidates=1, comparisons=tried, comparisons_cut=int(cut))
            if copied:
                near[number] = copied
                continue
        for group in groups:
            if len(kept_in[group]) < config.max_comparisons:
                kept_in[group].append(number)
            else:
                overflown.add(group)
    return near, dict(counted)


def _first_similar(
    number: int, rivals: Sequence[int], grams: "_Grams", config: MatchConfig
) -> tuple[tuple[int, float] | None, int]:
    """The first rival that is similar enough, with its similarity; and how many were compared."""
    mine = grams[number]
    for tried, rival in enumerate(rivals, start=1):
        similarity = jaccard(mine, grams[rival])
        if similarity >= config.min_similarity:
            return (rival, similarity), tried
    return None, len(rivals)


def _by_rank(found: Proposal) -> Iterator[tuple[int, Sequence[int]]]:
    """Proposed documents, the preferred first, each with its groups."""
    groups = found.groups
    owners = np.repeat(np.arange(len(groups.weights)), np.diff(groups.starts))
    order = np.argsort(found.rank[groups.members], kind="stable")
    members, owners = groups.members[order], owners[order]
    edges = np.flatnonzero(np.append(True, members[1:] != members[:-1])) if len(members) else []
    bounds = [*map(int, edges), len(members)]
    for first, last in itertools.pairwise(bounds):
        yield int(members[first]), owners[first:last].tolist()


class _Grams:
    """N-gram hashes of the proposed documents, read from the files of the workers."""

    def __init__(self, corpus: Corpus, groups: Groups):
        self._corpus = corpus
        self._needed = np.unique(groups.members)
        self._firsts = np.searchsorted(self._needed, corpus.starts)

    def __getitem__(self, number: int) -> np.ndarray:
        shard, _ = self._corpus.place(number)
        place = int(np.searchsorted(self._needed, number)) - int(self._firsts[shard])
        first, last = load_array(array_file(self._corpus.grams, "edges", shard))[place : place + 2]
        return load_array(array_file(self._corpus.grams, "grams", shard))[first:last]
