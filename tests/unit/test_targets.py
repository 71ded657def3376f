import pytest

from marin_dagster.targets import resolve


def test_addresses_and_patterns_are_found_each_once_in_order():
    found = resolve(["text/toy@2026.02.03", "text/toy@2026.*", "raw/toy@dev"])
    assert [recipe.address for recipe in found] == [
        "text/toy@2026.02.03",
        "text/toy@2026.01.01",
        "raw/toy@dev",
    ]


def test_a_pattern_that_matches_nothing_is_named():
    with pytest.raises(ValueError, match=r"pattern='nothing/\*' matches none of \d+ artifacts"):
        resolve(["nothing/*"])


def test_an_unknown_address_gets_the_nearest_ones():
    with pytest.raises(ValueError, match="did you mean text/toy@dev"):
        resolve(["text/toyy@dev"])
