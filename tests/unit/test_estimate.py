import dataclasses

import pytest

from marin_dagster.plan import plan
from marin_dagster.recipe import walk
from marin_dagster.record import RECORD
from marin_dagster.show import human_seconds, plan_lines
from marin_dagster.store import Store
from tests.toys import Upper, Words, road


def built(store: Store, target, *, seconds: float) -> None:
    """Builds a target as if each of its artifacts had taken that long."""
    for recipe in walk([target]).values():
        record = store.build(recipe).record
        slow = dataclasses.replace(record, ended=record.started + seconds)
        store.storage.write(f"{store.folder(recipe)}/{RECORD}", slow.to_json().encode())


def upper(version: str, *words: str) -> Upper:
    made = Words(name="toy", version=version, words=words)
    return Upper(name="toy", version=version, documents=made)


def test_the_time_is_that_of_earlier_builds_scaled_by_what_they_read(tmp_path):
    store = Store(str(tmp_path))
    built(store, upper("2026.01.01", "a"), seconds=10.0)
    now = upper("2026.02.03", *"abc")
    store.build(now.documents)
    step = plan(store, [now], known=[upper("2026.01.01", "a"), now])[now.address]
    assert step.estimate.cost == {"bytes": 6.0}
    assert step.estimate.seconds == pytest.approx(30.0)


def test_an_input_that_does_not_exist_yet_counts_as_it_was_before(tmp_path):
    store = Store(str(tmp_path))
    before, now = road("2026.01.01"), road("2026.02.03")
    built(store, before, seconds=10.0)
    known = walk([before, now]).values()
    steps = plan(store, [now], known=known)
    assert [step.estimate.seconds for step in steps.values()] == pytest.approx([10.0] * 3)
    assert "about 30 s of work by earlier builds" in list(plan_lines(steps, [now]))


def test_without_earlier_builds_no_time_is_told(tmp_path):
    steps = plan(Store(str(tmp_path)), [road()], known=[road()])
    assert {step.estimate.seconds for step in steps.values()} == {None}
    assert not [line for line in plan_lines(steps, [road()]) if "about" in line]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.53, "0.53 s"), (119.0, "119 s"), (120.0, "2 min"), (9_000.0, "2.5 h"), (2e5, "2.31 d")],
)
def test_times_for_people(seconds, text):
    assert human_seconds(seconds) == text
