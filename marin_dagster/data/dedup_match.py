"""Turns digests and proposed pairs into removals, each with a kept document that justifies it."""

import os
import struct
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from marin_dagster.data.dedup import MatchConfig
from marin_dagster.data.documents import scan_shard
from marin_dagster.data.pipeline import write_json
from marin_dagster.data.words import jaccard, ngram_hashes, word_hashes, words

DIGEST = np.dtype([("high", "u8"), ("low", "u8"), ("words", "i8"), ("characters", "i8")])
_PAIR = struct.Struct("<4I")  # shard, row, shard, row, as datatrove writes them

Place = tuple[int, int]  # shard, row


@dataclass(frozen=True)
class Copies:
    """Removals by place, and what was counted on the way."""

    removals: Mapping[Place, Mapping[str, Any]]
    numbers: Mapping[str, int]


def digest_file(work: str, shard: int) -> str:
    """Where a worker puts the digests of a shard."""
    return os.path.join(work, "digests", f"{shard:05d}.npy")


def save_removals(path: str, found: Copies) -> None:
    """Writes removals for the workers, by `shard:row`."""
    write_json(path, {f"{shard}:{row}": value for (shard, row), value in found.removals.items()})


def find_copies(signatures: str, buckets: str, paths: Sequence[str], config: MatchConfig) -> Copies:
    """Exact copies by digest, then near copies among what MinHash proposes, verified."""
    digests = [np.load(digest_file(signatures, shard)) for shard in range(len(paths))]
    empty, exact = _exact_copies(digests, config)
    groups = _groups(buckets, exact)
    named = {place for group in groups for place in group}
    ids, grams = _read_places(paths, named, set(exact.values()), config)
    near, counted = _near_copies(groups, digests, grams, config)
    removals: dict[Place, Mapping[str, Any]] = {place: {"kind": "empty"} for place in empty}
    for place, (kept, similarity) in near.items():
        row = {"kept": ids[kept], "similarity": round(similarity, 6), "kind": "fuzzy"}
        removals[place] = row
    for place, kept in exact.items():
        if kept in near:  # the copy that stood for the others went: name what stands now
            kept_now, similarity = near[kept]
            row = {"kept": ids[kept_now], "similarity": round(similarity, 6), "kind": "exact"}
        else:
            row = {"kept": ids[kept], "similarity": 1.0, "kind": "exact"}
        removals[place] = row
    short = sum(int(((d["words"] > 0) & (d["words"] < config.ngram_size)).sum()) for d in digests)
    return Copies(removals, {**counted, "short_documents": short})


def _exact_copies(
    digests: Sequence[np.ndarray], config: MatchConfig
) -> tuple[list[Place], dict[Place, Place]]:
    """Places without words, and each exact copy with the place that stands for it."""
    empty: list[Place] = []
    best: dict[tuple[int, int], Place] = {}
    copies: dict[Place, Place] = {}
    groups: dict[tuple[int, int], list[Place]] = defaultdict(list)
    for shard, rows in enumerate(digests):
        for row, (high, low, num_words, _) in enumerate(rows.tolist()):
            if num_words == 0:
                empty.append((shard, row))
                continue
            place = (shard, row)
            first = best.setdefault((high, low), place)
            if first != place:
                groups[high, low].append(place)
    for key, places in groups.items():
        everyone = [best[key], *places]
        kept = min(everyone, key=lambda place: _priority(place, digests, config))
        copies |= {place: kept for place in everyone if place != kept}
    return empty, copies


def _priority(place: Place, digests: Sequence[np.ndarray], config: MatchConfig) -> tuple[int, ...]:
    """Lowest is kept."""
    shard, row = place
    if not config.keep_longest:
        return place
    digest = digests[shard][row]
    return -int(digest["words"]), -int(digest["characters"]), shard, row


def _groups(buckets: str, exact: Mapping[Place, Place]) -> list[list[Place]]:
    """Places that share a band, one list per band and value, without exact copies."""
    groups: list[list[Place]] = []
    folder = os.path.join(buckets, "pairs")
    for name in sorted(os.listdir(folder)):
        with open(os.path.join(folder, name), "rb") as file:
            pairs = _PAIR.iter_unpack(file.read())
            for group in _chains(((a, b), (c, d)) for a, b, c, d in pairs):
                distinct = sorted({exact.get(place, place) for place in group})
                if len(distinct) > 1:
                    groups.append(distinct)
    return groups


def _chains(pairs: Iterable[tuple[Place, Place]]) -> Iterator[list[Place]]:
    """Joins pairs that follow each other: datatrove writes a group as a-b, b-c, c-d."""
    chain: list[Place] = []
    for one, other in pairs:
        if chain and chain[-1] == one:
            chain.append(other)
            continue
        if chain:
            yield chain
        chain = [one, other]
    if chain:
        yield chain


def _read_places(
    paths: Sequence[str], compared: set[Place], kept: set[Place], config: MatchConfig
) -> tuple[dict[Place, str], dict[Place, np.ndarray]]:
    """Ids of the given places, and the n-grams of those that will be compared."""
    ids: dict[Place, str] = {}
    grams: dict[Place, np.ndarray] = {}
    for shard in sorted({shard for shard, _ in compared | kept}):
        documents = (d for _, d in scan_shard(paths[shard]) if not isinstance(d, ValueError))
        for row, document in enumerate(documents):
            place = (shard, row)
            if place in compared:
                grams[place] = _grams(document["text"], config)
            if place in compared or place in kept:
                ids[place] = document["id"]
    return ids, grams


def _near_copies(
    groups: Sequence[Sequence[Place]],
    digests: Sequence[np.ndarray],
    grams: Mapping[Place, np.ndarray],
    config: MatchConfig,
) -> tuple[dict[Place, tuple[Place, float]], dict[str, int]]:
    """Each near copy with the kept place it copies and their similarity.

    Documents come in order of priority, so that everyone who could stand for a document was
    decided before it.
    """
    member_of: dict[Place, list[int]] = defaultdict(list)
    for number, group in enumerate(groups):
        for place in group:
            member_of[place].append(number)
    kept_in: dict[int, list[Place]] = defaultdict(list)
    near: dict[Place, tuple[Place, float]] = {}
    counted = Counter(candidates=len(member_of), comparisons=0, comparisons_cut=0)
    for place in sorted(member_of, key=lambda place: _priority(place, digests, config)):
        shared = Counter(kept for number in member_of[place] for kept in kept_in[number])
        rivals = sorted(shared, key=lambda kept: (-shared[kept], kept))
        counted["comparisons_cut"] += len(rivals) > config.max_comparisons
        for rival in rivals[: config.max_comparisons]:
            counted["comparisons"] += 1
            similarity = jaccard(grams[place], grams[rival])
            if similarity >= config.min_similarity:
                near[place] = (rival, similarity)
                break
        else:
            for number in member_of[place]:
                kept_in[number].append(place)
    return near, dict(counted)


def _grams(text: str, config: MatchConfig) -> np.ndarray:
    """Sorted distinct n-gram hashes of what MinHash saw of the text."""
    tokens = words(text)
    joined = " ".join(tokens)
    if len(joined) > config.max_characters:
        tokens = joined[: config.max_characters].rpartition(" ")[0].split()
    return np.unique(ngram_hashes(word_hashes(tokens), config.ngram_size))
