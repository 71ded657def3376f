from types import SimpleNamespace

import pytest

from marin_dagster.experiments import collect
from tests.toys import Words


def words(*texts: str, name: str = "toy", version: str = "dev") -> Words:
    return Words(name=name, version=version, words=texts)


def module(experiment, versions=("dev",)):
    return SimpleNamespace(__name__="lab", VERSIONS=versions, experiment=experiment)


def test_recipes_of_all_experiments_and_versions_are_found_by_address():
    found = collect([("a", module(lambda version: (words("x"),)))])
    assert list(found) == ["raw/toy@dev"]


def test_two_experiments_may_share_an_artifact_and_must_agree_on_it():
    same = module(lambda version: (words("x"),))
    assert len(collect([("a", same), ("b", same)])) == 1
    other = module(lambda version: (words("y"),))
    with pytest.raises(ValueError, match=r"experiments 'a' and 'b': two different recipes claim"):
        collect([("a", same), ("b", other)])


@pytest.mark.parametrize(
    ("experiment", "words_"),
    [
        (lambda version: words("x"), "not a tuple of recipes"),
        (lambda version: None, "returned None"),
        (lambda version: ["a"], "not a tuple of recipes"),
        (lambda: (), "TypeError"),
        (lambda version: {}["x"], "KeyError: 'x'"),
        (lambda version: 1 / 0, "ZeroDivisionError"),
        (lambda version: (words("x", name="Bad Name"),), "name='Bad Name'"),
        (lambda version: (Words(name="a", version="dev", words=["x"]),), "words=.*is a list"),
        (lambda version: (words("x"), words("y")), "two different recipes claim raw/toy@dev"),
    ],
)
def test_an_experiment_that_fails_is_named(experiment, words_):
    with pytest.raises(ValueError, match=rf"experiment 'bad' \(lab\).*{words_}"):
        collect([("bad", module(experiment))])


def test_an_experiment_without_versions_says_what_it_lacks():
    with pytest.raises(ValueError, match="lacks VERSIONS, a tuple of versions"):
        collect([("bad", module(lambda version: (), versions="dev"))])
