import json
import warnings
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from marin_dagster import experiments
from marin_dagster.experiments.recurring import (
    Recurrence,
    add_version,
    entries,
    next_version,
)
from marin_dagster.storage import Storage
from tests.toys import Words

TODAY = "2026.12.01"
PROCESSES, EACH = 4, 8


def add(prefix, **words) -> str:
    return add_version(Storage(str(prefix)), "toy", today=TODAY, taken=("dev",), **words)


def versions(prefix) -> list[str]:
    return [entry.version for entry in entries(Storage(str(prefix)), "toy")]


def add_many(prefix: str) -> list[str]:
    return [add(prefix) for _ in range(EACH)]


def recurs(name: str, versions=("dev",)):
    def experiment(version):
        return (Words(name=name, version=version, words=("x",)),)

    return SimpleNamespace(
        __name__=name,
        VERSIONS=versions,
        RECURS=Recurrence(cron="0 2 * * *"),
        experiment=experiment,
    )


@pytest.fixture
def installed(prefix, monkeypatch):
    """Two recurring experiments instead of those that are installed."""
    modules = {"one": recurs("one"), "two": recurs("two", ("dev", "2026.01.01"))}
    monkeypatch.setattr(experiments, "_modules", lambda: modules)
    experiments.forget_catalog()
    yield Path(prefix, ".experiments")
    experiments.forget_catalog()


def test_the_version_of_a_day_gets_a_number_when_it_is_taken():
    assert next_version(TODAY, set()) == "2026.12.01"
    assert next_version(TODAY, {"2026.12.01", "2026.12.01.1"}) == "2026.12.01.2"


def test_renewals_at_once_lose_no_version(tmp_path):
    with ProcessPoolExecutor(PROCESSES) as pool:
        told = [v for found in pool.map(add_many, [str(tmp_path)] * PROCESSES) for v in found]
    assert len(set(told)) == PROCESSES * EACH
    assert sorted(versions(tmp_path)) == sorted(told)
    (tmp_path / ".experiments" / "toy.json").unlink()  # only repeats the others
    assert sorted(versions(tmp_path)) == sorted(told)


def test_an_occasion_adds_one_version_however_often_it_is_tried(tmp_path):
    first = add(tmp_path, occasion="tick 1")
    assert add(tmp_path, occasion="tick 1") == first
    assert add(tmp_path, occasion="tick 2") == f"{TODAY}.1"


@pytest.mark.parametrize("version", ["dev", "2026.13.01", "2026.12.01"])
def test_a_version_that_is_taken_or_none_is_refused(tmp_path, version):
    add(tmp_path)
    with pytest.raises(ValueError, match=f"version='{version}' of experiment 'toy' exists"):
        add(tmp_path, version=version)
    assert versions(tmp_path) == [TODAY]


def test_a_renewed_experiment_has_its_version_in_the_catalog(installed):
    (target,) = experiments.renew("two", version="2026.12.01")
    assert target.address == "raw/two@2026.12.01"
    assert list(experiments.catalog()) == [
        "raw/one@dev",
        "raw/two@dev",
        "raw/two@2026.01.01",
        "raw/two@2026.12.01",
    ]


@pytest.mark.parametrize(
    ("file", "content", "way_out"),
    [
        ("one.json", "{", "delete it, it is made again"),
        ("one.json", '{"versions": [{"version": "dev", "made": 0}]}', "delete it"),
        ("one/00001.json", "[]", "with the version that it held"),
    ],
)
def test_a_list_that_cannot_be_read_is_named_and_the_rest_is_loaded(
    installed, file, content, way_out
):
    experiments.renew("two")
    path = installed / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    experiments.forget_catalog()
    with pytest.warns(UserWarning, match=f"'one' is loaded without .*{file}.*{way_out}"):
        found = experiments.catalog()
    assert "raw/one@dev" in found
    assert len(found) == 4
    with pytest.raises(ValueError, match=way_out):
        experiments.renew("one")


def test_a_prefix_that_is_never_renewed_is_not_touched(installed):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        experiments.catalog()
    assert not installed.parent.exists()


def test_a_version_for_which_the_experiment_fails_is_not_added(installed, monkeypatch):
    module = experiments._modules()["one"]
    monkeypatch.setattr(module, "experiment", lambda version: 1 / 0)
    with pytest.raises(ValueError, match=r"'one' .*fails for version .*ZeroDivisionError"):
        experiments.renew("one")
    assert not installed.exists()


def test_an_experiment_that_is_not_installed_says_which_are(installed):
    with pytest.raises(
        ValueError, match=r"experiment='three' is not installed; there are one, two"
    ):
        experiments.renew("three")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"cron": "2 * * *"}, "has not five fields"),
        ({"cron": "0 2 * * *", "timezone": "Mars/Olympus"}, "is not known here"),
    ],
)
def test_a_recurrence_that_makes_no_sense_is_refused(fields, words):
    with pytest.raises(ValueError, match=words):
        Recurrence(**fields)


def test_the_index_is_readable_by_people(tmp_path):
    add(tmp_path, occasion="by hand")
    (row,) = json.loads((tmp_path / ".experiments" / "toy.json").read_text())["versions"]
    assert (row["version"], row["occasion"]) == (TODAY, "by hand")
