import os
import signal
from dataclasses import dataclass
from pathlib import Path

import pytest

from marin_dagster.data.documents import (
    SUFFIX,
    Document,
    ShardFile,
    document_id,
    read_documents,
    shard_paths,
)
from marin_dagster.data.pipeline import DocumentStep, Drop, Keep, MapReport, map_documents
from marin_dagster.recipe import Placement, StageError
from tests.fake_context import FakeContext
from tests.unit.data.toy_documents import ToyDocuments, write_documents


@dataclass(frozen=True)
class DropOdd(DocumentStep):
    """Drops odd numbers; writes down which shards it saw; dies on a word while a file exists."""

    trace: str
    deadly: str = ""

    def judge(self, document: Document, shard: int, row: int) -> Keep | Drop:
        if row == 0:
            with open(self.trace, "a") as file:
                file.write(f"{shard}\n")
        number = int(document["text"])
        if document["text"] == self.deadly and os.path.exists(self.trace + ".armed"):
            os.remove(self.trace + ".armed")
            os.kill(os.getpid(), signal.SIGKILL)
        if number % 2:
            return Drop("odd", {"number": number})
        return Keep(document, {"half": number / 2})


def run(
    root: Path, toy: ToyDocuments, step: DocumentStep, name: str = "out", **options
) -> MapReport:
    ctx = FakeContext(ToyDocuments(name=name, version="dev"), root, Placement(workers=2))
    return map_documents(
        ctx, ctx.path(toy), step, attributes=("half",), evidence_file="odd.jsonl", **options
    )


def numbers(root: Path, name: str = "out") -> list[str]:
    return [d["text"] for d in read_documents(str(root / f"artifacts/raw/{name}@dev"))]


def test_shards_names_order_and_attributes_are_kept_and_counts_add_up(tmp_path):
    toy = write_documents(tmp_path, [str(n) for n in range(10)], shard_documents=4)
    report = run(tmp_path, toy, DropOdd(str(tmp_path / "trace")))
    assert numbers(tmp_path) == ["0", "2", "4", "6", "8"]
    assert report.counts.balance == 0
    assert (report.read, report.kept, report.dropped) == (10, 5, {"odd": 5})
    assert report.sources == {"toy": (10, 5)}
    out = tmp_path / "artifacts/raw/out@dev"
    names = ["00000" + SUFFIX, "00001" + SUFFIX, "00002" + SUFFIX]
    assert [path.name for path in sorted((out / "attributes/half").iterdir())] == names
    assert (out / "odd.jsonl").read_text().splitlines()[-1] == '{"number": 9}'


def test_a_worker_that_is_killed_fails_the_stage_and_a_second_run_redoes_only_its_shards(tmp_path):
    toy = write_documents(tmp_path, [str(n) for n in range(12)], shard_documents=2)
    trace = tmp_path / "trace"
    Path(f"{trace}.armed").touch()
    step = DropOdd(str(trace), deadly="9")
    with pytest.raises(StageError, match="killed by signal 9") as caught:
        run(tmp_path, toy, step)
    assert caught.value.reason == "killed"
    assert not list((tmp_path / "artifacts/raw/out@dev").rglob("*" + SUFFIX))
    before = trace.read_text().split()
    report = run(tmp_path, toy, step)
    again = trace.read_text().split()[len(before) :]
    assert "4" in again
    assert "3" not in again  # the killed worker had finished it
    assert (report.read, report.kept) == (12, 6)
    run(tmp_path, toy, DropOdd(str(trace)), name="whole")
    for ours, whole in zip(
        shard_paths(str(tmp_path / "artifacts/raw/out@dev")),
        shard_paths(str(tmp_path / "artifacts/raw/whole@dev")),
        strict=True,
    ):
        assert Path(ours).read_bytes() == Path(whole).read_bytes()


def test_a_finished_shard_that_was_cut_afterwards_is_done_again(tmp_path):
    toy = write_documents(tmp_path, [str(n) for n in range(6)], shard_documents=2)
    step = DropOdd(str(tmp_path / "trace"))
    run(tmp_path, toy, step)
    (cut,) = (tmp_path / "work").rglob("documents/00001" + SUFFIX)
    cut.write_bytes(cut.read_bytes()[:-3])
    run(tmp_path, toy, step)
    assert numbers(tmp_path) == ["0", "2", "4"]
    assert sorted((tmp_path / "trace").read_text().split()) == ["0", "1", "1", "2"]


def test_finished_shards_of_another_input_are_not_reused(tmp_path):
    step = DropOdd(str(tmp_path / "trace"))
    run(tmp_path, write_documents(tmp_path, ["0", "2"]), step)
    run(tmp_path, write_documents(tmp_path, ["4", "6"]), step)
    assert numbers(tmp_path) == ["4", "6"]


def write_lines(root: Path, lines: list[bytes]) -> ToyDocuments:
    import zstandard

    toy = ToyDocuments(name="bad", version="dev")
    folder = root / "artifacts" / toy.address / "documents"
    folder.mkdir(parents=True)
    data = zstandard.ZstdCompressor().compress(b"".join(line + b"\n" for line in lines))
    (folder / ("00000" + SUFFIX)).write_bytes(data)
    return toy


BAD_LINES = [
    b'{"id": "a", "text": "2"}',
    b'{"id": "b", "text": "4\\u0000", "metadata": {"x": "\\ud800"}}',
    b'{"id": "c", "text": "6',
    b'{"id": "d"}',
    b'{"id": "e", "text": "not a number \\ud800"}',
    b'{"id": "f", "text": "7"}',
]


def test_bad_rows_are_counted_by_reason_and_good_ones_are_cleaned(tmp_path):
    report = run(
        tmp_path,
        write_lines(tmp_path, BAD_LINES),
        DropOdd(str(tmp_path / "t")),
        max_error_share=0.5,
    )
    assert report.errors == {"bad_json": 1, "bad_row": 1, "ValueError": 1}
    assert report.counts.balance == 0
    assert numbers(tmp_path) == ["2", "4"]
    assert {row["reason"] for row in report.tables()["errors"]} == set(report.errors)
    assert report.tables()["errors"][0]["id"] == "00000.jsonl.zst line 3"


def test_too_many_bad_rows_fail_the_stage(tmp_path):
    toy = write_lines(tmp_path, BAD_LINES)
    with pytest.raises(StageError, match="3 of 6 documents") as caught:
        run(tmp_path, toy, DropOdd(str(tmp_path / "trace")))
    assert caught.value.reason == "bad_input"


def test_a_cut_input_shard_fails_the_stage_by_name(tmp_path):
    toy = write_documents(tmp_path, [str(n) for n in range(50)])
    (path,) = shard_paths(str(tmp_path / "artifacts" / toy.address))
    Path(path).write_bytes(Path(path).read_bytes()[:-5])
    with pytest.raises(StageError, match=r"00000\.jsonl\.zst is cut") as caught:
        run(tmp_path, toy, DropOdd(str(tmp_path / "trace")))
    assert caught.value.reason == "bad_input"


def test_a_stage_that_keeps_nothing_says_what_dropped_it_all(tmp_path):
    toy = write_documents(tmp_path, ["1", "3"])
    with pytest.raises(StageError, match="kept 0 of 2 documents: odd 2"):
        run(tmp_path, toy, DropOdd(str(tmp_path / "trace")))


def test_a_shard_whose_documents_are_all_dropped_stays_as_an_empty_shard(tmp_path):
    toy = write_documents(tmp_path, ["1", "3", "4"], shard_documents=2)
    run(tmp_path, toy, DropOdd(str(tmp_path / "trace")))
    assert len(shard_paths(str(tmp_path / "artifacts/raw/out@dev"))) == 2
    assert numbers(tmp_path) == ["4"]


def test_a_lost_lease_leaves_no_worker(tmp_path):
    toy = write_documents(tmp_path, [str(n) for n in range(6)], shard_documents=2)

    class Taken(FakeContext):
        def progress(self, done, total=None, unit="documents", **metrics):
            raise StageError("preempted", "taken over")

    ctx = Taken(ToyDocuments(name="out", version="dev"), tmp_path)
    with pytest.raises(StageError, match="taken over"):
        map_documents(ctx, ctx.path(toy), DropOdd(str(tmp_path / "trace")))
    mark = str(tmp_path).encode()
    left = [p for p in Path("/proc").glob("[0-9]*/cmdline") if mark in read_or_nothing(p)]
    assert not left


def read_or_nothing(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_a_shard_file_that_fails_leaves_nothing(tmp_path):
    path = tmp_path / ("x" + SUFFIX)
    with (
        pytest.raises(ValueError, match="pass it through clean_text"),
        ShardFile(str(path)) as shard,
    ):
        shard.write({"id": document_id("\ud800"), "text": "\ud800"})
    assert not list(tmp_path.iterdir())
