"""Every place goes somewhere else, each order looks random, and no table is needed."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marin_dagster.data.permutation import permutation_key, permute


def order(length: int, seed: int = 0, name: str = "web", epoch: int = 0) -> np.ndarray:
    keys = np.full(length, permutation_key(seed, name, epoch), np.uint64)
    return permute(np.arange(length), np.full(length, length), keys)


@settings(max_examples=60, deadline=None)
@given(length=st.integers(1, 5_000), seed=st.integers(0, 2**40))
def test_every_place_is_reached_once(length, seed):
    assert sorted(order(length, seed).tolist()) == list(range(length))


def test_the_order_is_pinned():
    """A change of these numbers changes the data of every run: they may never change."""
    assert order(10).tolist() == [5, 9, 1, 8, 7, 2, 0, 3, 4, 6]
    assert order(10, epoch=1).tolist() == [5, 9, 7, 8, 2, 1, 3, 4, 0, 6]
    assert order(10, name="b").tolist() == [2, 1, 6, 8, 5, 9, 0, 4, 7, 3]
    assert order(10, seed=1).tolist() == [6, 7, 4, 2, 3, 0, 1, 8, 9, 5]


def test_every_permutation_of_few_rows_occurs_equally_often():
    keys = np.array([permutation_key(seed, "web", 0) for seed in range(6_000)], np.uint64)
    places = np.tile(np.arange(4), 6_000)
    orders = permute(places, np.full(24_000, 4), np.repeat(keys, 4)).reshape(-1, 4)
    seen = Counter(map(tuple, orders.tolist()))
    assert len(seen) == 24
    expected = 6_000 / 24
    surprise = sum((count - expected) ** 2 / expected for count in seen.values())
    assert surprise < 50  # chi squared of 23 degrees of freedom: one in a thousand


@pytest.mark.parametrize("length", [100, 1_000, 65_537])
def test_neighbours_are_sent_far_apart_and_places_are_uncorrelated(length):
    places = order(length)
    assert np.mean(np.abs(np.diff(places))) == pytest.approx(length / 3, rel=0.2)
    assert abs(np.corrcoef(np.arange(length), places)[0, 1]) < 4 / np.sqrt(length)


def test_ten_thousand_rows_of_a_billion_are_found_without_a_table():
    length = 1_000_000_007
    places = np.arange(length - 10_000, length)
    keys = np.full(10_000, 7, np.uint64)
    found = permute(places, np.full(10_000, length), keys)
    assert len(np.unique(found)) == 10_000
    assert found.max() < length
    assert np.mean(found) == pytest.approx(length / 2, rel=0.05)


def test_sources_of_several_lengths_are_permuted_together_as_alone():
    lengths = np.array([5, 1_000, 40, 7])
    keys = np.array([permutation_key(0, name, 3) for name in "abcd"], np.uint64)
    places = np.array([4, 999, 0, 3])
    together = permute(places, lengths, keys)
    for row in range(4):
        only = slice(row, row + 1)
        assert permute(places[only], lengths[only], keys[only])[0] == together[row]
