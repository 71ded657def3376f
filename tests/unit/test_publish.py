"""What a build publishes on its way, through a real store and real kills."""

import json
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from marin_dagster.attempt import attempt_path
from marin_dagster.plan import DAMAGED, describe, plan
from marin_dagster.recipe import StageError, Summary, walk
from marin_dagster.store import Store
from marin_dagster.training.snapshot import Snapshot, snapshot_of
from tests.integration.lab import FIRST, Score, Training
from tests.toys import Words

RUN = Training(name="live", version=FIRST, snapshots=(2, 4))
EARLY, LATE = RUN.makes
SCORE = Score(name="early", version=FIRST, checkpoint=EARLY)


@pytest.fixture
def store(tmp_path) -> Store:
    return Store(str(tmp_path / "store"))


def text(store: Store, recipe) -> str:
    return Path(store.read_input(recipe)[1], "model.txt").read_text()


def build_in_a_process(store: Store, recipe: str = "RUN") -> int:
    code = f"from tests.unit.test_publish import *; Store({store.prefix!r}).build({recipe})"
    return subprocess.run([sys.executable, "-c", code], check=False).returncode


def test_the_run_stands_before_its_snapshot_and_reads_for_it():
    assert list(walk([SCORE])) == [RUN.address, EARLY.address, SCORE.address]
    assert EARLY.inputs == RUN.inputs
    assert EARLY.address == "snapshots/live.step-2@2026.01.01"


def test_a_run_with_other_fields_has_other_snapshots():
    other = Training(name="live", version=FIRST, snapshots=(2, 3))
    assert snapshot_of(other, 2).fingerprint != EARLY.fingerprint


def test_a_published_artifact_is_complete_with_a_record_of_its_own(store):
    store.build(RUN)
    record = store.record(EARLY)
    assert record.summary.numbers == {"steps": 2}
    assert store.damage(EARLY, record, checksums=True) == []
    assert store.record(LATE) is not None
    assert not list(Path(store.url(RUN)).glob(".work/*/live.step*"))
    assert store.build(SCORE).record.inputs[0].digest == record.digest


def test_a_missing_snapshot_is_planned_as_made_by_its_run(store):
    steps = plan(store, [SCORE])
    assert list(steps) == [RUN.address, EARLY.address, SCORE.address]
    assert describe(steps[EARLY.address].judgement) == (
        "run: made by checkpoints/live@2026.01.01 on its way"
    )
    assert all(step.runs for step in steps.values())


def test_a_published_snapshot_does_not_wait_for_its_run(store, monkeypatch):
    monkeypatch.setenv("LAB_MISTAKE_2", "kill")
    assert build_in_a_process(store) == -9
    assert store.record(RUN) is None
    steps = plan(store, [SCORE])
    assert [step.recipe.address for step in steps.values() if step.runs] == [SCORE.address]


def test_a_snapshot_that_was_removed_says_so_and_names_the_run_to_build(store):
    store.build(RUN)
    store.storage.remove(f"{store.folder(EARLY)}/.artifact.json")
    judgement = plan(store, [SCORE])[EARLY.address].judgement
    assert judgement.action == DAMAGED
    assert "checkpoints/live@2026.01.01, which makes it on its way, is complete" in judgement.reason
    with pytest.raises(StageError, match=r"marin build checkpoints/live@2026.01.01 --run`, and w"):
        store.build(EARLY)
    store.build(RUN, force=True)
    assert store.build(EARLY).reused


def test_a_snapshot_cannot_be_forced_alone(store):
    with pytest.raises(ValueError, match=r"build it again with `marin build checkpoints/live@"):
        plan(store, [EARLY], force=True)


def test_a_run_that_was_killed_keeps_what_it_had_published(store, monkeypatch):
    monkeypatch.setenv("LAB_MISTAKE_4", "kill")
    assert build_in_a_process(store) == -9
    before = store.record(EARLY), text(store, EARLY)
    monkeypatch.delenv("LAB_MISTAKE_4")
    store.build(RUN)
    assert (store.record(EARLY), text(store, EARLY)) == before
    assert [info.state for info in store.attempts(EARLY)] == ["succeeded"]
    assert [info.reason for info in store.attempts(RUN)] == ["killed", None]


@pytest.mark.parametrize("scheme", ["file", "memory"])
def test_a_run_that_is_built_again_replaces_what_it_had_published(tmp_path, scheme):
    store = Store(f"{scheme}://{tmp_path}/store", cache=str(tmp_path / "cache"))
    store.build(RUN)
    before = text(store, EARLY)
    store.build(RUN, force=True)
    assert text(store, EARLY) != before
    assert len(store.attempts(EARLY)) == 2


def test_a_run_that_forgets_a_snapshot_does_not_complete(store, monkeypatch):
    monkeypatch.setenv("LAB_MISTAKE_4", "forget")
    with pytest.raises(StageError, match=r"ended without snapshots/live.step-4@2026.01.01"):
        store.build(RUN)
    assert store.record(RUN) is None


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"step": 3}, r"step=3 of .* is not among snapshots=\(2, 4\) of checkpoints/live"),
        ({"name": "other"}, "not named after its run and step; use snapshot_of"),
        ({"version": "2026.01.02"}, "not named after its run and step"),
    ],
)
def test_a_snapshot_that_no_run_makes_is_refused(fields, words):
    with pytest.raises(ValueError, match=words):
        Snapshot(**{"name": "live.step-2", "version": FIRST, "run": RUN, "step": 2} | fields)


def test_a_new_snapshot_of_a_dev_run_does_not_wait_for_the_end_of_its_training(store, monkeypatch):
    store.build(replace(RUN, version="dev", snapshots=(4,)))
    changed = replace(RUN, version="dev")
    early = changed.makes[0]
    monkeypatch.setenv("LAB_MISTAKE_2", "kill")
    assert build_in_a_process(store, "replace(RUN, version='dev')") == -9
    assert plan(store, [changed])[changed.address].runs
    steps = plan(store, [Score(name="early", version="dev", checkpoint=early)])
    assert [address for address, step in steps.items() if step.runs] == ["evals/early@dev"]


def test_a_run_that_was_overtaken_does_not_replace_what_its_successor_published(tmp_path):
    store = Store(str(tmp_path), heartbeat_seconds=30)
    successor = Store(str(tmp_path), stale_seconds=0.0)

    def silent(ctx):
        path = Path(store.storage.full(attempt_path(store.folder(RUN), 1)))
        info = json.loads(path.read_text())
        path.write_text(json.dumps({**info, "host": "elsewhere", "heartbeat": 0.0}))
        published.append(successor.build(RUN) and successor.record(EARLY))
        Path(ctx.work, "draft").mkdir(parents=True)
        Path(ctx.work, "draft", "model.txt").write_text("late\n")
        ctx.publish(EARLY, str(Path(ctx.work, "draft")), Summary(numbers={}))
        raise AssertionError("unreachable")

    published = []
    with pytest.raises(StageError, match="another one took over"):
        store.build(RUN, work=silent)
    assert store.record(EARLY) == published[0]


def test_a_snapshot_names_the_input_that_its_run_has_read(store):
    words = Words(name="toy", version="dev", words=("one",))
    run = Reading(name="live", version="dev", snapshots=(2,), documents=words)
    read = store.build(words).record

    def work(ctx):
        Store(store.prefix).build(replace(words, words=("other",)))
        return run.build(ctx)

    record = store.build(run, work=work).record
    assert [item.digest for item in record.inputs] == [read.digest]
    assert store.record(run.makes[0]).inputs == record.inputs


@dataclass(frozen=True, kw_only=True)
class Reading(Training):
    """A training with an input."""

    documents: Words
