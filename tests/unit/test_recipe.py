import dataclasses
from dataclasses import dataclass
from typing import ClassVar

import pytest

from marin_dagster.kinds import Documents
from marin_dagster.recipe import Counts, Recipe, StageError, Summary, payload_diff, walk
from tests.toys import Joined, Upper, Words, road


def words(**changes) -> Words:
    return Words(**{"name": "toy", "version": "dev", "words": ("one",), **changes})


@pytest.mark.parametrize(
    "version", ["v1", "2026.13.01", "2026.02.31", "2026.1.1", "latest", "", "2026.01.01.x"]
)
def test_a_version_is_a_calendar_version_or_dev(version):
    with pytest.raises(ValueError, match=r"neither 'dev' nor a calendar version.*YYYY\.MM\.DD"):
        words(version=version)


@pytest.mark.parametrize("version", ["dev", "2026.11.30", "2026.11.30.2"])
def test_calendar_versions_and_dev_are_accepted(version):
    assert words(version=version).address == f"raw/toy@{version}"


@pytest.mark.parametrize("name", ["Toy", "a/b", "", "a@b", "-x", "a b"])
def test_a_name_that_is_no_folder_name_is_refused(name):
    with pytest.raises(ValueError, match="is not a name"):
        words(name=name)


def test_a_fixed_version_may_not_read_a_dev_input():
    with pytest.raises(ValueError, match=r"text/toy@2026\.01\.01 .*reads raw/toy@dev"):
        Upper(name="toy", version="2026.01.01", documents=words())


def test_inputs_are_the_recipe_valued_fields_each_once():
    one, two = words(), words(name="other")
    upper = Upper(name="toy", version="dev", documents=one)
    joined = Joined(name="toy", version="dev", parts=(upper, one, two, one))
    assert [item.address for item in joined.inputs] == [
        "text/toy@dev",
        "raw/toy@dev",
        "raw/other@dev",
    ]


def test_walk_gives_inputs_before_their_readers_and_each_once():
    assert list(walk([road(), road()])) == ["raw/toy@dev", "text/toy@dev", "deduped/toy@dev"]


def test_two_recipes_at_one_address_are_refused_with_the_field():
    parts = (words(), words(words=("two",)))
    with pytest.raises(ValueError, match=r"two different recipes claim raw/toy@dev .*words\[0\]"):
        walk([Joined(name="a", version="dev", parts=parts)])


def test_the_fingerprint_depends_on_fields_and_input_addresses_only():
    base = Upper(name="toy", version="dev", documents=words())
    assert dataclasses.replace(base, suffix="!").fingerprint != base.fingerprint
    assert dataclasses.replace(base, name="other").fingerprint == base.fingerprint
    other = Upper(name="toy", version="dev", documents=words(words=("x",)))
    assert other.fingerprint == base.fingerprint
    renamed = Upper(name="toy", version="dev", documents=words(name="b"))
    assert renamed.fingerprint != base.fingerprint


def test_a_field_without_a_stable_identity_is_refused_by_path():
    @dataclass(frozen=True)
    class Config:
        values: object

    @dataclass(frozen=True, kw_only=True)
    class Odd(Documents):
        stage: ClassVar[str] = "raw"
        config: Config

        def build(self, ctx):
            return Summary(numbers={})

    for value, kind in (({1, 2}, "set"), (["a"], "list"), (print, "builtin_function")):
        odd = Odd(name="odd", version="dev", config=Config(values=value))
        with pytest.raises(TypeError, match=rf"raw/odd@dev: config\.values.*is a {kind}"):
            _ = odd.fingerprint
    with pytest.raises(ValueError, match="not finite"):
        _ = Odd(name="odd", version="dev", config=Config(values=float("inf"))).fingerprint


def test_payload_diff_names_nested_fields():
    old = {"a": 1, "b": {"c": [1, 2]}, "gone": 1}
    new = {"a": 1, "b": {"c": [1, 3, 4]}, "new": 2}
    assert payload_diff(old, new) == [
        ("b.c[1]", 2, 3),
        ("b.c[2]", None, 4),
        ("gone", 1, None),
        ("new", None, 2),
    ]


def test_counts_know_what_is_unaccounted_for():
    assert Counts(unit="x", read=5, kept=2, dropped={"a": 1}, errors={"b": 2}).balance == 0
    assert Counts(unit="x", read=5, kept=2).balance == 3


def test_a_negative_count_is_refused():
    with pytest.raises(ValueError, match="short=-1 words is negative"):
        Counts(unit="words", read=0, kept=1, dropped={"short": -1})


def test_a_reason_outside_the_list_is_refused():
    with pytest.raises(ValueError, match="reason='odd' is not one of"):
        StageError("odd", "text")


def test_recipe_is_abstract():
    with pytest.raises(TypeError, match="abstract"):
        Recipe(name="a", version="dev")
