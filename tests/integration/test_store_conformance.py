"""One suite for all backends: what a store promises holds on a disk, in memory, on gs:// and s3://.

A store in memory belongs to one process, so where processes meet, three backends are tested.
"""

import json
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import fsspec
import pytest

from marin_dagster import upkeep
from marin_dagster.attempt import ATTEMPTS, attempt_path
from marin_dagster.recipe import StageError, Summary
from marin_dagster.record import RECORD
from marin_dagster.storage import Storage, StorageError
from marin_dagster.store import Store
from tests.integration.conftest import Place, open_place
from tests.integration.worker_reads import read_in_workers
from tests.servers import BUCKET, google_environment, proxy
from tests.toys import Upper, Words

WORDS = Words(name="toy", version="dev", words=("one", "two"))
ODD_NAMES = (
    "a [b].txt",
    "[ab]*?.txt",
    "hash#tag",
    "half 50%",
    "per%20cent",
    "what?x=1&y=2",
    "été/ü ß.txt",
    "*",
)


@pytest.fixture
def store(place, tmp_path) -> Store:
    return open_store(place.prefix, tmp_path)


def open_store(prefix: str, tmp_path, name: str = "cache", **settings) -> Store:
    return Store(prefix, cache=str(tmp_path / name), poll_seconds=0.02, **settings)


def winners(calls) -> int:
    with ThreadPoolExecutor(20) as pool:
        return sum(result is not None for result in pool.map(lambda call: call(), calls))


def test_of_twenty_threads_one_creates_a_file_and_one_replaces_it(place):
    storage = Storage(place.prefix)
    one = storage.create("locks/first", b"here")
    for race in range(3):
        path = f"locks/{race}"
        contents = [b"%d" % number for number in range(20)]
        assert winners(partial(storage.create, path, content) for content in contents) == 1
        version = storage.read_version(path).version
        contents = [b"new %d" % number for number in range(20)]
        calls = [partial(storage.replace, path, content, version) for content in contents]
        assert winners(calls) == 1
        assert storage.read(path).startswith(b"new ")
    assert storage.replace("locks/first", b"x", version) is None, "the version of another file"
    assert storage.replace("locks/first", b"there", one) is not None
    assert storage.replace("locks/none", b"x", one) is None, "there is no such file"
    assert storage.read("locks/none") is None


CREATE = """
import sys
from marin_dagster.storage import Storage
storage = Storage(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
print(*(int(storage.create(f"locks/{n}", sys.argv[2].encode()) is not None) for n in range(12)))
"""


def test_of_several_processes_one_creates_a_file(shared_place):
    processes = [start(CREATE, shared_place.prefix, str(number)) for number in range(4)]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    found = [[int(word) for word in process.communicate()[0].split()] for process in processes]
    assert [sum(column) for column in zip(*found, strict=True)] == [1] * 12


def start(code: str, *words: str) -> subprocess.Popen:
    """A process of its own that runs some Python."""
    command = [sys.executable, "-c", code, *words]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)


WRITE = """
import sys
from marin_dagster.storage import Storage
Storage(sys.argv[1]).write("folder/new", b"content")
"""


def test_what_another_process_writes_is_seen_at_once(shared_place):
    storage = Storage(shared_place.prefix)
    storage.write("folder/old", b"")
    assert storage.names("folder") == ["old"]
    assert storage.size("folder/new") is None
    assert start(WRITE, shared_place.prefix).wait() == 0
    assert storage.size("folder/new") == 7
    assert storage.read("folder/new") == b"content"
    assert storage.names("folder") == ["new", "old"]
    assert [(entry.path, entry.bytes) for entry in storage.walk("folder") if entry.bytes] == [
        ("new", 7)
    ]


def test_a_folder_is_not_a_file_and_a_prefix_of_a_name_is_not_a_folder(place):
    storage = Storage(place.prefix)
    storage.write("a/b/c", b"1")
    storage.write("a/bb", b"2")
    assert storage.size("a/b") is None
    assert storage.names("a") == ["b", "bb"]
    assert [entry.path for entry in storage.walk("a/b")] == ["c"]
    storage.remove("a/b")
    storage.remove("a/none")
    assert storage.names("a") == ["bb"]


def odd(ctx) -> Summary:
    for name in ODD_NAMES:
        path = Path(ctx.out, name)
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"content of {name}")
    return Summary(numbers={})


def test_odd_names_survive_upload_manifest_copy_and_verification(place, store, tmp_path):
    record = store.build(WORDS, work=odd).record
    assert {file.path for file in record.files} == set(ODD_NAMES)
    reader = open_store(place.prefix, tmp_path, "other-cache")
    _, folder = reader.read_input(WORDS)
    for name in ODD_NAMES:
        assert Path(folder, name).read_text() == f"content of {name}"
    assert upkeep.verify(reader, WORDS)[1] == []
    base = f"raw/toy/dev/{record.attempt:04d}"
    store.storage.remove(f"{base}/[ab]*?.txt")
    store.storage.write(f"{base}/hash#tag", b"content of hash#tAg")
    assert upkeep.verify(reader, WORDS)[1] == ["[ab]*?.txt is missing"]
    store.storage.write(f"{base}/[ab]*?.txt", b"content of [ab]*?.txt")
    _, damage = upkeep.verify(reader, WORDS)
    assert damage == ["hash#tag has other content than its record says (SHA-256)"]


def test_nothing_is_visible_before_the_record_and_a_failed_upload_publishes_nothing(
    place, store, tmp_path, monkeypatch
):
    reader = open_store(place.prefix, tmp_path, "other-cache")
    seen = []

    def look(ctx):
        summary = WORDS.build(ctx)
        Path(ctx.out, "later.txt").write_text("x")
        seen.append(reader.record(WORDS))
        return summary

    create = store.storage.create

    def broken(path, data):
        if path.endswith(RECORD):
            seen.append(reader.record(WORDS))
            raise StorageError("the network is gone")
        return create(path, data)

    monkeypatch.setattr(store.storage, "create", broken)
    with pytest.raises(StorageError):
        store.build(WORDS, work=look)
    assert seen == [None, None]
    assert reader.record(WORDS) is None
    assert reader.last_attempt(WORDS).state == "failed"
    monkeypatch.undo()
    for name, value in place.environment().items():
        monkeypatch.setenv(name, value)
    assert reader.build(WORDS).record.attempt == 2


def test_an_exception_in_the_middle_of_a_write_leaves_nothing(store):
    def torn(ctx):
        with open(Path(ctx.out, "rows.txt"), "w") as file:
            for row in range(10):
                file.write(f"{row}\n")
                if row == 3:
                    raise StageError("diverged", "row 3")
        raise AssertionError("unreachable")

    with pytest.raises(StageError, match="row 3"):
        store.build(WORDS, work=torn)
    assert store.record(WORDS) is None
    assert (store.last_attempt(WORDS).reason, store.last_attempt(WORDS).buried) == (
        "diverged",
        False,
    )
    if not store.storage.local:
        assert store.storage.names("raw/toy/dev") == [ATTEMPTS]


def age(store: Store, number: int) -> None:
    """Makes an attempt look as if it ran elsewhere and had been silent for a long time."""
    path = attempt_path("raw/toy/dev", number)
    info = json.loads(store.storage.read(path))
    store.storage.write(path, json.dumps({**info, "host": "elsewhere", "heartbeat": 1.0}).encode())


def test_of_many_that_find_a_stale_attempt_one_takes_over(place, tmp_path):
    stores = [open_store(place.prefix, tmp_path, f"cache-{n}", stale_seconds=5) for n in range(8)]
    first = stores[0]._start(WORDS, None)
    first.log("the first")
    age(stores[0], 1)
    made = []

    def build(store):
        def work(ctx):
            made.append(ctx.attempt.info.number)
            return WORDS.build(ctx)

        return store.build(WORDS, work=work)

    with ThreadPoolExecutor(8) as pool:
        outcomes = [*pool.map(build, stores)]
    assert made == [2]
    assert sorted(outcome.reused for outcome in outcomes) == [False, *[True] * 7]
    buried = stores[0].attempts(WORDS)[0]
    assert (buried.state, buried.reason, buried.buried) == ("failed", "killed", True)
    with pytest.raises(StageError, match="another one took over"):
        first.check()


def test_a_buried_writer_notices_by_its_heartbeat(place, tmp_path):
    slow = open_store(place.prefix, tmp_path, heartbeat_seconds=0.05)
    other = open_store(place.prefix, tmp_path, "other-cache", stale_seconds=-1)

    def overtaken(ctx):
        assert not other.build(WORDS).reused
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            ctx.progress(1)
            time.sleep(0.01)
        raise AssertionError("never noticed")

    with pytest.raises(StageError, match="another one took over"):
        slow.build(WORDS, work=overtaken)
    assert other.record(WORDS).attempt == 2


@pytest.mark.parametrize("complete_before", [False, True])
def test_a_loser_paused_before_its_last_write_cannot_overwrite_the_winner(
    place, tmp_path, monkeypatch, complete_before
):
    slow = open_store(place.prefix, tmp_path, heartbeat_seconds=60)
    other = open_store(place.prefix, tmp_path, "other-cache", stale_seconds=-1)
    if complete_before:
        other.build(WORDS)
    winner = []

    def pausing(method):
        def write(path, *rest):
            if path.endswith(RECORD):  # after the last check, before the write
                winner.append(other.build(WORDS, force=True).record)
            return method(path, *rest)

        return write

    for name in ("create", "replace"):
        monkeypatch.setattr(slow.storage, name, pausing(getattr(slow.storage, name)))
    outcome = slow.build(WORDS, force=True)
    assert outcome.reused
    assert other.record(WORDS) == outcome.record
    assert outcome.record.attempt == winner[0].attempt
    assert other.damage(WORDS, winner[0], checksums=True) == []


def test_a_loser_that_commits_before_the_winner_is_reused_with_all_its_files(
    place, tmp_path, monkeypatch
):
    slow = open_store(place.prefix, tmp_path, heartbeat_seconds=60)
    other = open_store(place.prefix, tmp_path, "other-cache", stale_seconds=-1)
    create = slow.storage.create
    found = []

    def pausing(path, data):
        if not path.endswith(RECORD):
            return create(path, data)

        def second(ctx):
            found.append(create(path, data))  # the buried one goes on where it was paused
            return WORDS.build(ctx)

        found.append(other.build(WORDS, work=second))
        return found[0]

    monkeypatch.setattr(slow.storage, "create", pausing)
    first = slow.build(WORDS)
    second = found[1]
    assert (first.reused, second.reused) == (False, True)
    assert first.record.attempt == second.record.attempt == 1
    assert other.damage(WORDS, other.record(WORDS), checksums=True) == []
    assert other.attempts(WORDS)[0].state == "succeeded", "it corrects what the other wrote of it"


def test_a_lease_that_somebody_deletes_does_not_fail_a_build(place, tmp_path):
    store = open_store(place.prefix, tmp_path, heartbeat_seconds=0.05)

    def work(ctx):
        path = attempt_path("raw/toy/dev", ctx.attempt.info.number)
        store.storage.remove(f"raw/toy/dev/{ATTEMPTS}")
        deadline = time.monotonic() + 60
        while store.storage.size(path) is None:
            assert time.monotonic() < deadline, "the next heartbeat writes it anew"
            time.sleep(0.01)
        store.storage.remove(f"raw/toy/dev/{ATTEMPTS}")
        return WORDS.build(ctx)

    assert not store.build(WORDS, work=work).reused
    assert store.last_attempt(WORDS).state == "succeeded"


@pytest.mark.slow
def test_two_hundred_fast_stages_with_fast_heartbeats_and_slow_deletes_all_succeed(
    google, tmp_path, monkeypatch
):
    def slow_delete(method, path):
        if method == "DELETE":
            time.sleep(0.05)

    with proxy(google, slow_delete) as url:
        for name, value in google_environment(url).items():
            monkeypatch.setenv(name, value)
        store = open_store(f"gs://{BUCKET}/{tmp_path.name}", tmp_path, heartbeat_seconds=0.01)

        def build(number: int) -> int:
            words = Words(name=f"toy-{number}", version="dev", words=("one",))

            def work(ctx):
                if number % 4 == 0:
                    lease = attempt_path(store.folder(words), 1)
                    threading.Thread(target=store.storage.remove, args=(lease,)).start()
                return words.build(ctx)

            assert not store.build(words, work=work).reused
            return store.record(words).attempt

        with ThreadPoolExecutor(8) as threads:
            assert list(threads.map(build, range(200))) == [1] * 200


class Busy:
    """Refuses the first writes of every file with a status."""

    def __init__(self, status: int, times: int):
        self.status, self.times = status, times
        self.refused: dict[str, int] = {}

    def __call__(self, method: str, path: str) -> int | None:
        if method in ("GET", "HEAD") or self.refused.setdefault(path, 0) >= self.times:
            return None
        self.refused[path] += 1
        return self.status


@pytest.mark.parametrize("status", [429, 503])
def test_a_busy_store_is_asked_again_and_the_build_succeeds(bucket, tmp_path, monkeypatch, status):
    busy = Busy(status, times=2 if bucket.kind == "gs" else 4)  # boto3 itself asks three times
    with proxy(bucket.server, busy) as url:
        for name, value in bucket.environment(url).items():
            monkeypatch.setenv(name, value)
        store = open_store(bucket.prefix, tmp_path)
        assert not store.build(WORDS).reused
    assert sum(busy.refused.values()) >= busy.times


def test_a_store_that_stays_busy_is_named_with_the_limit(bucket, monkeypatch):
    with proxy(bucket.server, Busy(429, times=10**6)) as url:
        for name, value in bucket.environment(url).items():
            monkeypatch.setenv(name, value)
        storage = Storage(bucket.prefix, patience_seconds=1.0)
        with pytest.raises(
            StorageError, match=r"still refused after \d+ tries in \d+ s, the limit"
        ):
            storage.write("a", b"b")
    for name, value in bucket.environment().items():
        monkeypatch.setenv(name, value)
    assert Storage(bucket.prefix).read("a") is None


def test_a_writer_whose_answer_is_lost_knows_that_it_has_won(bucket, monkeypatch):
    lost = []

    def lose_once(method, path):
        if method in ("PUT", "POST") and len(lost) < 1:
            lost.append(path)
            return "lose"
        return None

    with proxy(bucket.server, lose_once) as url:
        for name, value in bucket.environment(url).items():
            monkeypatch.setenv(name, value)
        storage = Storage(bucket.prefix)
        version = storage.create("lease", b"mine")
        assert version is not None
        lost.clear()
        assert storage.replace("lease", b"mine, again", version) is not None
        assert storage.create("lease", b"another") is None
    assert lost


@pytest.fixture
def amazon_place(request, tmp_path, monkeypatch) -> Place:
    """S3, whose requests name the key in the path, so that a proxy can limit each key."""
    return open_place(request, "s3", tmp_path, monkeypatch)


def test_one_write_per_second_and_key_is_enough_for_builds_that_report_much(
    amazon_place, tmp_path, monkeypatch
):
    last: dict[str, float] = {}
    refused = []

    def limit(method, path):
        if method != "PUT":
            return None
        key, now = path.partition("?")[0], time.monotonic()
        if now - last.get(key, -10) < 1.0:
            refused.append(key)
            return 429
        last[key] = now
        return None

    def build(number):
        store = open_store(amazon_place.prefix, tmp_path, heartbeat_seconds=0.1)
        words = Words(name=f"toy-{number}", version="dev", words=("one",))

        def work(ctx):
            for step in range(20):
                ctx.log(f"step {step}")
                ctx.progress(step)
            return words.build(ctx)

        return store.build(words, work=work).reused

    with proxy(amazon_place.server, limit) as url:
        for name, value in amazon_place.environment(url).items():
            monkeypatch.setenv(name, value)
        with ThreadPoolExecutor(4) as pool:
            assert [*pool.map(build, range(4))] == [False] * 4
    assert refused, "the limit was met"


def test_a_store_is_read_by_workers_while_the_parent_has_it_open(bucket, tmp_path):
    store = open_store(bucket.prefix, tmp_path)
    record = store.build(WORDS).record
    started = time.monotonic()
    text = read_in_workers(store, WORDS, tmp_path)
    assert time.monotonic() - started < 60
    assert text == "one\ntwo\n"
    with fsspec.open(f"{store.data_url(WORDS, record)}/words.txt", "rt") as file:
        assert file.read() == text, "gcsfs and s3fs see the same"


def test_a_forked_process_makes_a_client_of_its_own(bucket):
    storage = Storage(bucket.prefix)
    storage.write("a", b"b")
    child = os.fork()
    if child == 0:
        os._exit(0 if storage.read("a") == b"b" and storage.create("c", b"d") else 1)
    deadline = time.monotonic() + 90
    while (ended := os.waitpid(child, os.WNOHANG))[0] == 0:
        if time.monotonic() > deadline:
            os.kill(child, 9)
            os.waitpid(child, 0)
            raise AssertionError("the child hangs")
        time.sleep(0.02)
    assert ended[1] == 0
    assert storage.read("c") == b"d"


def test_an_upper_recipe_reads_its_input_from_the_store(store):
    store.build(WORDS)
    upper = Upper(name="toy", version="dev", documents=WORDS)
    record = store.build(upper).record
    assert Path(store.localize(upper, record), "words.txt").read_text() == "ONE\nTWO\n"
