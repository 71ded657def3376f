import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from marin_dagster.attempt import attempt_path, process_is_gone
from marin_dagster.plan import plan
from marin_dagster.recipe import Counts, StageError, Summary, walk
from marin_dagster.record import RECORD
from marin_dagster.store import CountsError, Store
from tests.toys import Upper, Words, road

WORDS = Words(name="toy", version="dev", words=("one", "two"))
SLOW = Upper(name="slow", version="dev", documents=WORDS, misbehave="slow")


def build_all(store: Store, target) -> None:
    for recipe in walk([target]).values():
        store.build(recipe)


@pytest.fixture(params=["local", "memory"])
def store(request, tmp_path) -> Store:
    prefix = str(tmp_path / "s") if request.param == "local" else f"memory://{tmp_path.name}"
    return Store(prefix, cache=str(tmp_path / "cache"))


def test_a_build_makes_a_record_whose_manifest_lists_every_file(store):
    build_all(store, road())
    record = store.record(road())
    assert record is not None
    assert [file.path for file in record.files] == ["words.txt"]
    assert record.inputs[0].digest == store.record(road().inputs[0]).digest
    assert record.summary.numbers == {"words": 4}
    assert store.damage(road(), record, checksums=True) == []


def test_a_complete_artifact_is_reused(store):
    assert not store.build(WORDS).reused
    assert store.build(WORDS).reused


def test_a_build_that_dies_leaves_no_artifact_and_its_reason(store):
    store.build(WORDS)
    upper = Upper(name="toy", version="dev", documents=WORDS, misbehave="raise")
    with pytest.raises(StageError, match="as asked"):
        store.build(upper)
    assert store.record(upper) is None
    last = store.last_attempt(upper)
    assert (last.state, last.reason) == ("failed", "diverged")


def test_a_rebuild_that_dies_leaves_the_old_artifact_whole(store):
    build_all(store, road())
    upper = road().inputs[0]
    before = store.record(upper)
    broken = Upper(name="toy", version="dev", documents=WORDS, misbehave="raise")
    with pytest.raises(StageError):
        store.build(broken)
    assert store.record(upper) == before
    assert store.damage(upper, before, checksums=True) == []


def test_counts_that_do_not_balance_are_not_committed(store):
    store.build(WORDS)
    upper = Upper(name="toy", version="dev", documents=WORDS, misbehave="lose")
    with pytest.raises(CountsError, match=r"do not balance: read 2, kept 1.*1 words"):
        store.build(upper)
    assert store.record(upper) is None


def test_an_empty_output_is_not_committed(store):
    with pytest.raises(CountsError, match="kept none of 0 words"):
        store.build(Words(name="none", version="dev", words=()))


def test_a_missing_input_is_named_before_anything_starts(store):
    upper = Upper(name="toy", version="dev", documents=WORDS)
    with pytest.raises(StageError, match=r"input raw/toy@dev is not complete.*never built"):
        store.build(upper)
    assert store.last_attempt(upper) is None


@pytest.mark.parametrize("content", [b"one\n", b"xne\ntwo\n"])
def test_a_file_changed_under_its_record_stops_its_readers(tmp_path, content):
    store = Store(str(tmp_path))
    record = store.build(WORDS).record
    Path(store.data_url(WORDS, record), "words.txt").write_bytes(content)
    upper = Upper(name="toy", version="dev", documents=WORDS)
    with pytest.raises(StageError, match=r"raw/toy@dev at .* is damaged: words.txt has .*--force"):
        Store(str(tmp_path)).build(upper)
    repaired = store.build(WORDS, force=True).record
    assert store.damage(WORDS, repaired, checksums=True) == []


def test_a_lost_file_is_damage_and_not_a_reason_to_rebuild_silently(tmp_path):
    store = Store(str(tmp_path))
    record = store.build(WORDS).record
    Path(store.data_url(WORDS, record), "words.txt").unlink()
    assert plan(store, [WORDS])[WORDS.address].judgement.action == "damaged"
    with pytest.raises(StageError, match=r"words.txt is missing"):
        store.build(WORDS)


@pytest.mark.parametrize("content", ["", "null", '{"format": 1', '{"format": 2}', "[1]"])
def test_a_record_that_cannot_be_read_is_damage_and_force_repairs_it(tmp_path, content):
    store = Store(str(tmp_path))
    store.build(WORDS)
    Path(store.url(WORDS), RECORD).write_text(content)
    assert plan(store, [WORDS])[WORDS.address].judgement.action == "damaged"
    with pytest.raises(StageError, match=r"the record of raw/toy@dev at .* cannot be read"):
        store.build(WORDS)
    assert not store.build(WORDS, force=True).reused
    assert store.build(WORDS).reused


@pytest.mark.parametrize("content", ["", "null", '{"number": 1}', '{"log_tail": []}'])
def test_an_attempt_file_that_cannot_be_read_blocks_nothing(tmp_path, content):
    store = Store(str(tmp_path))
    store.build(WORDS)
    path = Path(store.url(WORDS), ".attempts", "0001.json")
    path.write_text(content)
    assert str(path) in store.last_attempt(WORDS).message
    assert store.build(WORDS, force=True).record.attempt == 2


def test_lost_attempt_files_never_lead_to_the_folder_of_the_artifact(tmp_path):
    store = Store(str(tmp_path))
    record = store.build(WORDS).record
    store.storage.remove("raw/toy/dev/.attempts")
    with pytest.raises(StageError, match="on purpose"):
        store.build(WORDS, force=True, work=_fail)
    assert store.record(WORDS) == record
    assert store.damage(WORDS, record, checksums=True) == []


def _fail(ctx):
    Path(ctx.out, "words.txt").write_text("half")
    raise StageError("error", "on purpose")


def test_drift_of_an_input_is_refused_too(tmp_path):
    build_all(Store(str(tmp_path)), road("2026.01.01").inputs[0])
    changed = Words(name="toy", version="2026.01.01", words=("other",))
    upper = Upper(name="new", version="2026.01.01", documents=changed)
    with pytest.raises(StageError, match=r"raw/toy@2026.01.01 has drifted and MARIN_DRIFT=error"):
        Store(str(tmp_path), drift="error").build(upper)


def _returning(summary):
    def work(ctx):
        Path(ctx.out, "words.txt").write_text("x")
        return summary

    return work


def test_numpy_values_are_recorded_as_numbers_and_what_json_lacks_as_none(tmp_path):
    numbers = {"a": np.float32(1.5), "b": np.int64(2), "c": float("nan"), "d": np.array(3)}
    counts = Counts(unit="words", read=2, kept=1, dropped=Counter(short=1))
    store = Store(str(tmp_path))
    store.build(WORDS, work=_returning(Summary(numbers=numbers, counts=counts)))
    summary = store.record(WORDS).summary
    assert summary.numbers == {"a": 1.5, "b": 2, "c": None, "d": 3}
    assert summary.counts.dropped == {"short": 1}


def test_plots_become_files_of_the_artifact(tmp_path):
    store = Store(str(tmp_path))
    summary = Summary(numbers={}, plots={"Loss": "<svg/>"})
    record = store.build(WORDS, work=_returning(summary)).record
    assert Path(store.data_url(WORDS, record), record.plots["Loss"]).read_text() == "<svg/>"
    assert record.plots["Loss"] in {file.path for file in record.files}


@pytest.mark.parametrize(
    ("summary", "words"),
    [
        (Summary(numbers={"a": np.zeros(2)}), r"numbers of raw/toy@dev cannot be recorded: array"),
        (Summary(numbers={}, tables={"t": [{"x": object()}]}), "tables of raw/toy@dev"),
        (None, "returned a NoneType; return a Summary"),
    ],
)
def test_a_summary_that_cannot_be_recorded_is_not_committed(tmp_path, summary, words):
    store = Store(str(tmp_path))
    with pytest.raises(StageError, match=words):
        store.build(WORDS, work=_returning(summary))
    assert store.record(WORDS) is None


def test_a_link_among_the_files_is_refused_by_name(tmp_path):
    def work(ctx):
        Path(ctx.out, "words.txt").write_text("x")
        Path(ctx.out, "other.txt").symlink_to("words.txt")
        return Summary(numbers={})

    with pytest.raises(StageError, match=r"'other.txt' is a link; write the file itself"):
        Store(str(tmp_path)).build(WORDS, work=work)


@pytest.mark.parametrize("prefix", ["/", "", "/a::b"])
def test_a_prefix_that_is_no_folder_of_its_own_is_refused(prefix):
    with pytest.raises(ValueError, match=r"prefix=.* is not a folder of its own; set MARIN_PREFIX"):
        Store(prefix)


def test_a_prefix_of_an_unknown_protocol_is_named():
    with pytest.raises(ValueError, match=r"prefix='nosuch://x' cannot be opened.*MARIN_PREFIX"):
        Store("nosuch://x")


def test_an_unwritable_prefix_is_named_with_the_way_out(tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(StageError, match=r"prefix .*file cannot be written.*MARIN_PREFIX"):
        Store(str(file)).build(WORDS)


def test_a_dev_artifact_is_rebuilt_when_its_recipe_changed_and_a_fixed_one_drifts(store):
    build_all(store, road())
    build_all(store, road("2026.01.01"))
    changed = road(suffix="!")
    step = plan(store, [changed])["text/toy@dev"]
    assert step.judgement.action == "run"
    assert str(step.judgement.differences[0]) == "recipe suffix:  → !"
    fixed = plan(store, [road("2026.01.01", suffix="!")])
    assert [step.judgement.action for step in fixed.values()] == ["reuse"]
    upper = road("2026.01.01", suffix="!").inputs[0]
    outcome = store.build(upper)
    assert outcome.reused
    assert [item.field for item in outcome.judgement.drifted] == ["suffix"]


def test_drift_is_refused_when_asked_for(tmp_path):
    build_all(Store(str(tmp_path)), road("2026.01.01"))
    upper = road("2026.01.01", suffix="!").inputs[0]
    with pytest.raises(StageError, match=r"has drifted and MARIN_DRIFT=error: recipe suffix"):
        Store(str(tmp_path), drift="error").build(upper)


def test_a_dev_artifact_is_kept_when_a_rebuilt_input_has_the_same_content(store):
    build_all(store, road())
    store.build(WORDS, force=True)
    assert store.build(road().inputs[0]).reused


def test_an_artifact_whose_input_was_rebuilt_is_stale(store):
    first = Words(name="toy", version="2026.01.01", words=("one",))
    upper = Upper(name="toy", version="2026.01.01", documents=first)
    build_all(store, upper)
    other = Words(name="toy", version="2026.01.01", words=("two",))
    store.build(other, force=True)
    outcome = store.build(upper)
    assert outcome.reused
    assert [item.field for item in outcome.judgement.stale] == ["raw/toy@2026.01.01"]


def test_a_killed_build_leaves_nothing_visible_and_the_next_one_finishes_it(tmp_path):
    store = Store(str(tmp_path))
    store.build(WORDS)
    upper = Upper(name="toy", version="dev", documents=WORDS, misbehave="kill")
    code = (
        "import sys; from tests.toys import *; from marin_dagster.store import Store;"
        "words = Words(name='toy', version='dev', words=('one', 'two'));"
        "Store(sys.argv[1]).build("
        "Upper(name='toy', version='dev', documents=words, misbehave='kill'))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert store.record(upper) is None
    assert store.last_attempt(upper).state == "running"
    started = time.monotonic()
    record = store.build(Upper(name="toy", version="dev", documents=WORDS)).record
    assert time.monotonic() - started < 30, "a dead process on this host needs no waiting"
    assert record.attempts[0]["reason"] == "killed"
    assert not Path(store.url(upper), "0001").exists()


def _contend(prefix: str, results) -> None:
    outcome = Store(prefix, poll_seconds=0.05).build(SLOW)
    results.put((outcome.reused, outcome.record.attempt))


def test_one_writer_per_address_and_the_others_reuse(tmp_path):
    Store(str(tmp_path)).build(WORDS)
    spawn = multiprocessing.get_context("spawn")
    results = spawn.Queue()
    racers = [spawn.Process(target=_contend, args=(str(tmp_path), results)) for _ in range(6)]
    for racer in racers:
        racer.start()
    found = [results.get(timeout=300) for _ in racers]
    for racer in racers:
        racer.join()
    assert sorted(reused for reused, _ in found) == [False, *[True] * 5]
    assert len({attempt for _, attempt in found}) == 1


def test_a_writer_that_was_silent_loses_its_address_and_cannot_commit(tmp_path):
    store = Store(str(tmp_path), heartbeat_seconds=30, stale_seconds=0.2)
    other = Store(str(tmp_path), stale_seconds=0.0)

    def overtaken(ctx):
        summary = WORDS.build(ctx)
        path = store.storage.full(attempt_path(store.folder(WORDS), 1))
        info = json.loads(Path(path).read_text())
        Path(path).write_text(json.dumps({**info, "host": "elsewhere", "heartbeat": 0.0}))
        assert not other.build(WORDS).reused
        return summary

    with pytest.raises(StageError, match="another one took over"):
        store.build(WORDS, work=overtaken)
    assert store.record(WORDS).attempt == 2
    assert store.damage(WORDS, store.record(WORDS), checksums=True) == []


def test_an_input_that_is_not_a_field_cannot_be_read(tmp_path):
    store = Store(str(tmp_path))
    build_all(store, road())

    def sneak(ctx):
        ctx.path(road().inputs[0])
        raise AssertionError("unreachable")

    with pytest.raises(StageError, match="which is not a field of it"):
        store.build(Words(name="b", version="dev", words=("x",)), work=sneak)


def test_what_another_user_wrote_is_not_a_live_process_of_ours(tmp_path):
    store = Store(str(tmp_path), stale_seconds=1000)
    store.build(WORDS)
    path = Path(store.url(WORDS), ".attempts", "0001.json")
    info = json.loads(path.read_text())
    path.write_text(json.dumps({**info, "state": "running", "pid": 2**22 + 1, "ended": None}))
    os.unlink(Path(store.url(WORDS), RECORD))
    assert not store.build(WORDS).reused


def test_the_record_names_the_input_that_was_read_though_it_was_rebuilt_meanwhile(tmp_path):
    store = Store(str(tmp_path))
    read = store.build(WORDS).record
    upper = Upper(name="toy", version="dev", documents=WORDS)

    def while_the_input_is_rebuilt(ctx):
        other = Words(name="toy", version="dev", words=("other",))
        assert Store(str(tmp_path)).build(other).record.digest != read.digest
        return upper.build(ctx)

    record = store.build(upper, work=while_the_input_is_rebuilt).record
    assert [item.digest for item in record.inputs] == [read.digest]
    assert Path(store.data_url(upper, record), "words.txt").read_text() == "ONE\nTWO\n"
    assert plan(store, [upper])[upper.address].judgement.stale


def test_a_rebuilt_input_stays_readable_for_who_had_begun_to_read_it(tmp_path):
    store = Store(str(tmp_path))
    before = store.build(WORDS).record
    for _ in range(2):
        store.build(WORDS, force=True)
    assert store.damage(WORDS, before, checksums=True) == []


def test_a_forced_build_that_fails_leaves_the_files_of_a_record_it_cannot_read(tmp_path):
    store = Store(str(tmp_path))
    record = store.build(WORDS).record
    Path(store.url(WORDS), RECORD).write_text('{"format": 99}')
    with pytest.raises(StageError, match="on purpose"):
        store.build(WORDS, force=True, work=_fail)
    assert Path(store.data_url(WORDS, record), "words.txt").read_text() == "one\ntwo\n"


@pytest.mark.parametrize("part", ["payload", "code", "inputs", "summary"])
def test_a_record_with_a_part_of_another_type_is_damage(tmp_path, part):
    store = Store(str(tmp_path))
    store.build(WORDS)
    path = Path(store.url(WORDS), RECORD)
    path.write_text(json.dumps({**json.loads(path.read_text()), part: None}))
    judgement = plan(store, [WORDS])[WORDS.address].judgement
    assert judgement.action == "damaged"
    assert part in judgement.reason


def test_an_attempt_of_another_process_namespace_is_not_taken_for_dead(tmp_path):
    store = Store(str(tmp_path), stale_seconds=1000)
    store.build(WORDS)
    path = Path(store.url(WORDS), ".attempts", "0001.json")
    info = json.loads(path.read_text())
    other = {"state": "running", "ended": None, "pid": 2**22 + 1, "namespace": "pid:[1]"}
    path.write_text(json.dumps({**info, **other}))
    assert not process_is_gone(store.last_attempt(WORDS))


def test_a_forced_build_that_waited_for_one_that_failed_builds(tmp_path):
    store = Store(str(tmp_path), poll_seconds=0.01)
    store.build(WORDS)

    results = []
    pool = ThreadPoolExecutor()
    said = []

    def start_other(ctx):
        results.append(
            pool.submit(
                Store(str(tmp_path), poll_seconds=0.01).build, WORDS, force=True, log=said.append
            )
        )
        while not any("waiting for it" in line for line in said):
            time.sleep(0.01)
        raise StageError("error", "on purpose")

    with pytest.raises(StageError, match="on purpose"):
        store.build(WORDS, force=True, work=start_other)
    assert results[0].result(timeout=300).record.attempt == 3
