"""Turns the hashes of all paragraphs into the repeats of each document, with who keeps the first.

Two different paragraphs have one 64-bit hash with a chance of about 3 in 100 at 10^9 paragraphs.
"""

from collections import defaultdict

import numpy as np

from marin_dagster.data.arrays import array_file, load_array
from marin_dagster.data.row_files import save_rows


def save_repeats(hashed: str, folder: str, num_shards: int) -> dict[str, int]:
    """Writes, for the rows of each shard, the numbers of repeated paragraphs and the first's id."""

    def load(name: str, shard: int) -> np.ndarray:
        return load_array(array_file(hashed, name, shard))

    hashes = np.concatenate([load("hashes", shard) for shard in range(num_shards)])
    firsts = _first_places(hashes)
    edges = np.cumsum([0, *(len(load("hashes", shard)) for shard in range(num_shards))])
    documents = characters = 0

    def find(place: int) -> tuple[int, int, int]:
        """Shard, row and number in the document of a paragraph."""
        shard = int(np.searchsorted(edges, place, side="right")) - 1
        inside = place - int(edges[shard])
        row = int(np.searchsorted(load("starts", shard), inside, side="right")) - 1
        return shard, row, inside - int(load("starts", shard)[row])

    repeated = np.flatnonzero(firsts != np.arange(len(firsts)))
    for shard in range(num_shards):
        first, last = np.searchsorted(repeated, edges[shard : shard + 2])
        here = repeated[first:last]
        rows: dict[int, list[tuple[int, str]]] = defaultdict(list)
        for place, original in zip(here.tolist(), firsts[here].tolist(), strict=True):
            _, row, number = find(place)
            kept_shard, kept_row, _ = find(original)
            rows[row].append((number, load("ids", kept_shard)[kept_row].decode()))
        save_rows(folder, shard, rows)
        documents += len(rows)
        characters += int(load("characters", shard)[here - edges[shard]].sum())
    return {
        "paragraphs": len(hashes),
        "paragraphs_removed": len(repeated),
        "characters_removed": characters,
        "documents_changed": documents,
    }


def _first_places(hashes: np.ndarray) -> np.ndarray:
    """For every paragraph the place of the first that is equal; of a short one, its own."""
    places = np.arange(len(hashes))
    long = np.flatnonzero(hashes)
    _, first, inverse = np.unique(hashes[long], return_index=True, return_inverse=True)
    places[long] = long[first[inverse]]
    return places
