"""Prefixes keep the weights, places are found directly, and no weight is too small."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marin_dagster.data.interleave import Interleave

WEIGHTS = st.dictionaries(
    st.text("abcdefgh", min_size=1, max_size=3), st.floats(1e-6, 1e3), min_size=1, max_size=12
)


@settings(max_examples=60, deadline=None)
@given(weights=WEIGHTS, start=st.integers(0, 10**10))
def test_any_stretch_keeps_the_weights_within_a_few_places(weights, start):
    interleave, size = Interleave(weights), 500
    sources, _ = interleave.at(np.arange(start, start + size))
    total = sum(Fraction(weight) for weight in weights.values())
    counts = interleave.counts(start)
    for index, name in enumerate(interleave.names):
        share = Fraction(weights[name]) / total
        assert abs(counts[name] - start * share) <= 2
        assert abs(int((sources == index).sum()) - size * share) <= 4  # 2 at each end
    assert sum(counts.values()) == start


@settings(max_examples=30, deadline=None)
@given(weights=WEIGHTS, start=st.integers(0, 10**12))
def test_a_place_found_directly_knows_what_came_before(weights, start):
    interleave = Interleave(weights)
    seen = interleave.counts(start)
    sources, nth = interleave.at(np.arange(start, start + 100))
    for source, number in zip(sources, nth, strict=True):
        name = interleave.names[source]
        assert number == seen[name]
        seen[name] += 1
    assert seen == interleave.counts(start + 100)


def test_the_order_in_which_sources_are_listed_does_not_matter():
    weights = {"a": 0.5, "b": 0.5, "c": 0.25, "d": 1e-3}
    turned = dict(reversed(weights.items()))
    places = np.arange(2_000)
    one, other = Interleave(weights), Interleave(turned)
    assert [one.names[source] for source in one.at(places)[0]] == [
        other.names[source] for source in other.at(places)[0]
    ]


@pytest.mark.parametrize("weight", [1e-6, 1e-9])
def test_a_tiny_weight_is_honoured_on_average(weight):
    counts = Interleave({"a": 1 - weight, "b": weight}).counts(20 * round(1 / weight))
    assert counts["b"] == 20


def test_eight_tiny_sources_among_many_are_all_read():
    """Counts rounded per 49,152 rows gave eight such sources of the hero run nothing at all."""
    weights = {f"big{i}": 1.0 for i in range(100)} | {f"small{i}": 4e-4 for i in range(8)}
    counts = Interleave(weights).counts(10 * 49_152)
    for i in range(8):
        assert counts[f"small{i}"] == pytest.approx(10 * 49_152 * 4e-6, abs=1)


def test_nothing_repeats_after_a_period():
    sources, _ = Interleave({"a": 2**0.5, "b": 1.0}).at(np.arange(20_000))
    for period in range(1, 2_000):
        assert (sources[period:] != sources[:-period]).any()
