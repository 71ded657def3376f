"""`marin gc | adopt | verify`, and what kills and other laboratories leave them to do."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import fsspec
import pytest
from boto3.session import Session
from click.testing import CliRunner, Result

from marin_dagster import upkeep
from marin_dagster.cli import main
from marin_dagster.experiments import find
from marin_dagster.recipe import StageError
from marin_dagster.region import contains
from marin_dagster.storage import Storage
from marin_dagster.store import Store
from tests.servers import (
    BUCKET,
    ROOT,
    amazon_environment,
    google_environment,
    google_server,
    proxy,
)
from tests.toys import Words

WORDS = find("raw/toy@dev")


def marin(*words: str) -> Result:
    return CliRunner().invoke(main, list(words))


@pytest.fixture
def store(place, monkeypatch, tmp_path) -> Store:
    monkeypatch.setenv("MARIN_PREFIX", place.prefix)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return Store(place.prefix)


def fail(ctx):
    Path(ctx.out, "half.txt").write_text("x" * 1000)
    Path(ctx.work, "part.txt").write_text("y" * 500)
    raise StageError("error", "on purpose")


def test_gc_lists_what_failed_attempts_left_and_removes_it_only_when_told(store):
    kept = store.build(WORDS).record
    with pytest.raises(StageError, match="on purpose"):
        store.build(WORDS, work=fail, force=True)
    folder = store.folder(WORDS)
    if not store.storage.local:
        store.storage.write(f"{folder}/0002/half.txt", b"x" * 1000)
    listed = marin("gc")
    assert listed.exit_code == 0
    assert "1kB  files of attempt 2 (error)" in listed.output
    assert "500 B  what a complete artifact was resumed from" in listed.output
    assert "1.5kB in 2 leftovers to remove" in listed.output
    assert store.storage.names(f"{folder}/0002") == ["half.txt"]
    assert "removed" in marin("gc", "--run").output
    assert store.storage.names(f"{folder}/0002") == []
    assert "0 B in 0 leftovers" in marin("gc").output
    assert store.damage(WORDS, kept, checksums=True) == []


def test_gc_leaves_a_live_attempt_and_other_addresses_alone(store):
    def look(ctx):
        Path(ctx.out, "words.txt").write_text("x")
        store.storage.write(f"{store.folder(WORDS)}/0001/early.txt", b"x")
        assert "0 B in 0 leftovers" in marin("gc", "--run").output
        assert store.storage.size(f"{store.folder(WORDS)}/0001/early.txt") == 1
        raise StageError("error", "on purpose")

    with pytest.raises(StageError, match="on purpose"):
        store.build(WORDS, work=look)
    nothing = marin("gc", "text/*")
    assert nothing.exit_code != 0
    assert "'text/*' matches nothing under" in nothing.output
    assert "1 leftovers" in marin("gc", "raw/toy@*").output


def test_gc_removes_nothing_of_a_build_that_began_while_it_looked(store):
    with pytest.raises(StageError, match="on purpose"):
        store.build(WORDS, work=_fail)
    store.storage.write(f"{store.folder(WORDS)}/0001/half.txt", b"half")

    def look(ctx):
        Path(ctx.out, "words.txt").write_text("x")
        for item in found:
            item.remove()
        assert Path(ctx.out, "words.txt").exists()
        assert Path(ctx.work).exists()
        return WORDS.build(ctx)

    looking = upkeep.leftovers(store)
    found = [next(looking)]  # it has read the attempts of this address by now
    record = store.build(WORDS, work=look).record
    found += list(looking)
    for item in found:
        item.remove()
    assert store.damage(WORDS, record, checksums=True) == []


def _fail(ctx):
    raise StageError("error", "on purpose")


KILLED = """
import os, sys
from pathlib import Path
from marin_dagster.recipe import Summary
from marin_dagster.store import Store
from tests.toys import Words

def work(ctx):
    Path(ctx.out, "large.bin").write_bytes(os.urandom(20 * 2**20))
    return Summary(numbers={})

words = Words(name="toy", version="dev", words=("one", "two"))
Store(sys.argv[1]).build(words, work=work)
"""


def test_a_kill_during_an_upload_publishes_nothing_and_gc_clears_up(bucket, tmp_path, monkeypatch):
    """The proxy holds the second half of the file back until the writer is dead."""
    stuck = tmp_path / "stuck"
    dead = tmp_path / "dead"

    def hold(method, path):
        if method == "PUT" and ("partNumber=3" in path or "upload_id" in path):
            stuck.touch()
            while not dead.exists():
                time.sleep(0.02)
            return 400
        return None

    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("MARIN_PREFIX", bucket.prefix)
    with proxy(bucket.server, hold) as url:
        writer = subprocess.Popen(
            [sys.executable, "-c", KILLED, bucket.prefix],
            cwd=ROOT,
            env={**os.environ, **bucket.environment(url)},
        )
        try:
            until(lambda: stuck.exists() or writer.poll() is not None)
            if bucket.kind == "s3":
                until(lambda: uploaded(bucket) >= 2)
        finally:
            writer.send_signal(signal.SIGKILL)
            writer.wait()
            dead.touch()
    store = Store(bucket.prefix)
    assert store.record(WORDS) is None
    assert store.storage.size("raw/toy/dev/0001/large.bin") is None
    listed = marin("gc").output
    assert "21MB  output of a killed build" in listed
    if bucket.kind == "s3":
        assert "unfinished upload" in listed
        assert "MB  unfinished upload" in listed
    else:
        assert "Unfinished uploads to Google Cloud Storage cannot be listed" in listed
    marin("gc", "--run")
    assert store.storage.unfinished("raw/toy/dev") == []
    assert not store.build(WORDS).reused


def uploaded(bucket) -> int:
    """Parts that the server has, of 8 MiB each."""
    found = Storage(bucket.prefix).unfinished("raw/toy/dev")
    return sum(upload.bytes for upload in found) // (8 * 2**20)


def until(condition) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_gc_removes_writes_and_downloads_that_were_killed_long_ago(tmp_path, monkeypatch):
    monkeypatch.setenv("MARIN_PREFIX", str(tmp_path / "store"))
    store = Store(str(tmp_path / "store"))
    store.build(WORDS)
    old = Path(store.url(WORDS), ".attempts", ".0001.json.abc.marin-part")
    new = old.with_name(".0001.json.def.marin-part")
    old.write_text("x")
    new.write_text("x")
    os.utime(old, (1, 1))
    assert "unfinished write" in marin("gc", "--run").output
    assert (old.exists(), new.exists()) == (False, True)


def test_verify_reads_every_file_and_fails_on_damage(store):
    record = store.build(WORDS).record
    sound = marin("verify", "raw/toy@dev")
    assert (sound.exit_code, sound.output) == (0, "raw/toy@dev  sound  1 files, 8 B\n")
    path = f"{store.folder(WORDS)}/{record.attempt:04d}/words.txt"
    store.storage.write(path, b"one\ntwO\n")
    damaged = marin("verify", "raw/toy@*")
    assert damaged.exit_code == 1
    assert "raw/toy@dev  DAMAGED  words.txt has other content" in damaged.output
    assert marin("verify", "deduped/toy@dev").exit_code == 1
    assert "NOT COMPLETE" in marin("verify", "deduped/toy@dev").output
    assert "did you mean" in marin("verify", "raw/tory@dev").output


def test_adopted_data_is_an_artifact_whose_record_says_where_it_comes_from(store, tmp_path):
    source = tmp_path / "elsewhere"
    (source / "sub [x]").mkdir(parents=True)
    (source / "words.txt").write_text("one\n")
    (source / "sub [x]" / "é#?.txt").write_text("two\n")
    (source / ".hidden").write_text("no")
    upper = find("text/toy@dev")  # its input was never built, and need not be
    looked = marin("adopt", upper.address, "--from", str(source))
    assert "2 files" in looked.output
    assert store.record(upper) is None
    done = marin("adopt", upper.address, "--from", str(source), "--run")
    assert done.exit_code == 0, done.output
    record = store.record(upper)
    assert {file.path for file in record.files} == {"words.txt", "sub [x]/é#?.txt"}
    assert record.adopted["source"] == str(source)
    assert f"adopted      from {source} by" in marin("show", upper.address).output
    assert "did not make the data" in record.summary.notes["adopted"]
    assert store.build(upper).reused, "no drift of code that never ran"
    again = marin("adopt", upper.address, "--from", str(source), "--run")
    assert again.exit_code == 2
    assert "is complete" in again.output
    assert "--force" in again.output
    forced = marin("adopt", upper.address, "--from", str(source), "--run", "--force")
    assert forced.exit_code == 0
    assert store.record(upper).attempt > record.attempt


def test_data_is_adopted_from_a_url_and_an_empty_one_is_refused(prefix):
    with fsspec.open("memory://adopt/here/words.txt", "wb") as file:
        file.write(b"three\n")
    done = marin("adopt", "raw/toy@dev", "--from", "memory://adopt/here", "--run")
    assert done.exit_code == 0, done.output
    store = Store(prefix)
    assert Path(store.localize(WORDS, store.record(WORDS)), "words.txt").read_text() == "three\n"
    empty = marin("adopt", "raw/toy@2026.01.01", "--from", "memory://adopt/none", "--run")
    assert empty.exit_code == 2
    assert "'memory://adopt/none' holds no files to adopt" in empty.output
    assert store.last_attempt(find("raw/toy@2026.01.01")) is None


@pytest.mark.parametrize(
    ("location", "compute", "fits"),
    [
        ("europe-west4", "europe-west4", True),
        ("europe-west4", "us-central1", False),
        ("EU", "europe-west4", True),
    ],
)
def test_a_google_bucket_of_another_region_is_refused_before_anything_starts(
    tmp_path, monkeypatch, location, compute, fits
):
    monkeypatch.setattr("marin_dagster.region._regions", {})
    with google_server(location) as url:
        for name, value in google_environment(url).items():
            monkeypatch.setenv(name, value)
        refuse(f"gs://{BUCKET}/x", compute, fits, tmp_path)


@pytest.mark.parametrize(
    ("bucket", "compute", "fits"),
    [
        ("EU", "europe-west2", False),
        ("US", "us-east1", True),
        ("ASIA", "us-east1", False),
        ("NAM4", "us-central1", True),
        ("NAM4", "us-west1", False),
        ("US-CENTRAL1", "us-central1", True),
    ],
)
def test_a_multi_region_contains_its_regions(bucket, compute, fits):
    assert contains(bucket, compute) is fits


@pytest.mark.parametrize(("location", "fits"), [("eu-west-1", True), ("eu-central-1", False)])
def test_an_amazon_bucket_of_another_region_is_refused_before_anything_starts(
    amazon, tmp_path, monkeypatch, location, fits
):
    for name, value in amazon_environment(amazon).items():
        monkeypatch.setenv(name, value)
    name = f"place-{location}"
    where = {"LocationConstraint": location}
    Session().client("s3").create_bucket(Bucket=name, CreateBucketConfiguration=where)
    refuse(f"s3://{name}/x", "eu-west-1", fits, tmp_path)


def refuse(prefix: str, compute: str, fits: bool, tmp_path) -> None:
    words = Words(name="toy", version="dev", words=("one",))
    store = Store(prefix, region=compute, cache=str(tmp_path / "cache"))
    if fits:
        region = store.build(words).record.provenance["region"]
        assert region["compute"] == compute
        assert "allowed" not in region
        return
    with pytest.raises(StageError, match=f"MARIN_REGION={compute}.* lies in .*=allow"):
        store.build(words)
    assert store.last_attempt(words) is None
    said = []
    allowed = Store(prefix, region=compute, cross_region=True, cache=str(tmp_path / "cache"))
    record = allowed.build(words, log=said.append).record
    assert record.provenance["region"]["allowed"] is True
    assert any("crossing regions" in line for line in said)
