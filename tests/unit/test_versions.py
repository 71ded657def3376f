import pytest

from marin_dagster.experiments import catalog
from marin_dagster.show import artifact_lines
from marin_dagster.store import Store
from marin_dagster.versions import compare_versions

VERSIONS = ("2026.01.01", "2026.02.03", "dev")


@pytest.fixture
def built(prefix, edit):
    """The toy words in three versions, of which the last has a word more."""
    store = Store(prefix)
    edit("raw/toy@dev", words=("one", "two", "three"))
    for version in VERSIONS:
        store.build(catalog()[f"raw/toy@{version}"])
    return store


def comparison(store, version):
    recipe = catalog()[f"raw/toy@{version}"]
    return compare_versions(store, recipe, store.record(recipe))


def test_the_previous_version_is_the_nearest_complete_one_below(built):
    assert comparison(built, "dev").previous.recipe.version == "2026.02.03"
    assert comparison(built, "2026.01.01").previous is None
    built.storage.remove("raw/toy/2026.02.03")
    assert comparison(built, "dev").previous.recipe.version == "2026.01.01"


def test_numbers_stand_side_by_side_and_differing_fields_are_named(built):
    found = comparison(built, "dev")
    assert found.numbers() == [{"number": "words", "dev": 3, "2026.02.03": 2, "2026.01.01": 2}]
    assert found.differences(found.previous) == [("words[2]", None, "three")]
    assert comparison(built, "2026.02.03").differences(found.older[1]) == []


def test_a_record_that_cannot_be_read_is_left_out(built):
    built.storage.write("raw/toy/2026.02.03/.artifact.json", b"{")
    assert comparison(built, "dev").previous.recipe.version == "2026.01.01"


def test_show_names_the_previous_version(built):
    lines = "\n".join(artifact_lines(built, catalog()["raw/toy@dev"]))
    assert "previous     2026.02.03: words[2]: None → three" in lines
