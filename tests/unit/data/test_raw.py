"""Documents, chats and tasks from datasets, files and seeds."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from marin_dagster.data.documents import read_conversations, read_documents
from marin_dagster.data.raw import (
    HubDataset,
    LocalDocuments,
    LocalTasks,
    StoryConversations,
    StoryTasks,
)
from marin_dagster.recipe import Recipe, StageError
from tests.fake_context import build

ROWS = [{"text": f"text {number}", "year": number, "tags": ["x"]} for number in range(5)]


def jsonl(rows: list[Any]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def texts(root: Path, recipe: Recipe) -> list[str]:
    folder = str(root / "artifacts" / recipe.address)
    return [document["text"] for document in read_documents(folder)]


def local(*paths: Path, **fields: Any) -> LocalDocuments:
    return LocalDocuments(name="toy", version="dev", paths=tuple(map(str, paths)), **fields)


def test_documents_come_from_every_format_in_the_order_of_the_paths(tmp_path: Path):
    import pyarrow as pa
    import pyarrow.parquet as pq
    import zstandard

    root, tmp_path = tmp_path / "store", tmp_path / "files"
    tmp_path.mkdir()
    (tmp_path / "a.jsonl.zst").write_bytes(zstandard.compress(jsonl(ROWS[:2])))
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(jsonl(ROWS[2:3])))
    (tmp_path / "c.jsonl").write_bytes(jsonl(ROWS[3:4]))
    (tmp_path / "d.txt").write_text("a whole\nfile")
    pq.write_table(pa.Table.from_pylist(ROWS[4:]), tmp_path / "e.parquet")
    recipe = local(tmp_path / "*")
    summary = build(recipe, root)
    assert texts(root, recipe) == [
        "text 0", "text 1", "text 2", "text 3", "a whole\nfile", "text 4"
    ]  # fmt: skip
    assert summary.counts is not None
    assert summary.counts.balance == 0
    first = next(read_documents(str(root / "artifacts" / recipe.address)))
    assert first["metadata"] == {"year": 0}


def test_bad_rows_are_counted_with_file_and_line(tmp_path: Path):
    body = jsonl(ROWS) + b"{broken\n" + jsonl([{"body": "x"}, {"text": "  "}, {"text": None}])
    (tmp_path / "a.jsonl").write_bytes(body)
    summary = build(local(tmp_path / "a.jsonl", max_error_fraction=0.5), tmp_path / "store")
    assert summary.counts is not None
    assert summary.counts.kept == 5
    assert summary.counts.dropped == {"empty_text": 1}
    assert summary.counts.errors == {"bad_json": 1, "no_text_field": 2}
    assert "a.jsonl line 6" in summary.tables["errors"][0]["message"]


def test_a_wrong_text_field_is_refused_and_the_fields_are_named(tmp_path: Path):
    (tmp_path / "a.jsonl").write_bytes(jsonl([{"body": "x", "id": 1}]))
    with pytest.raises(StageError, match=r"kept 0 of 1 .* it has body, id.*text_field='text'"):
        build(local(tmp_path / "a.jsonl"), tmp_path / "store")


def test_an_unknown_format_is_refused(tmp_path: Path):
    (tmp_path / "a.pdf").write_bytes(b"%PDF")
    with pytest.raises(StageError, match=r"a\.pdf.*format is not known"):
        build(local(tmp_path / "a.pdf"), tmp_path / "store")


@pytest.mark.parametrize("limit", [None, 3])
def test_a_dataset_folder_is_read_whole_or_as_a_stream(tmp_path: Path, limit: int | None):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train.jsonl").write_bytes(jsonl(ROWS))
    recipe = HubDataset(
        name="toy",
        version="dev",
        repo=str(tmp_path / "data"),
        revision="local",
        max_documents=limit,
    )
    build(recipe, tmp_path / "store")
    assert texts(tmp_path / "store", recipe) == [f"text {n}" for n in range(limit or 5)]


def test_a_hub_that_cannot_be_reached_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    import datasets
    import huggingface_hub.constants

    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    recipe = HubDataset(
        name="toy", version="dev", repo="nobody/nothing", revision="abc", max_documents=1
    )
    with pytest.raises(StageError, match=r"repo='nobody/nothing'.*LocalDocuments") as caught:
        build(recipe, tmp_path)
    assert caught.value.reason == "bad_input"


def test_a_hub_dataset_without_revision_is_refused():
    with pytest.raises(ValueError, match="revision=''"):
        HubDataset(name="toy", version="dev", repo="a/b", revision="")


def test_chats_are_made_from_a_seed(tmp_path: Path):
    recipe = StoryConversations(name="toy", version="dev", seed=1, num_conversations=20)
    for root in (tmp_path / "one", tmp_path / "two"):
        build(recipe, root)
    shards = [
        (root / "artifacts" / recipe.address / "conversations/00000.jsonl.zst").read_bytes()
        for root in (tmp_path / "one", tmp_path / "two")
    ]
    assert shards[0] == shards[1]
    chats = list(read_conversations(str(tmp_path / "one/artifacts" / recipe.address)))
    assert len(chats) == 20
    assert chats[0]["messages"][-1]["role"] == "assistant"


def test_story_tasks_have_rows_that_their_yaml_names(tmp_path: Path):
    import yaml

    recipe = StoryTasks(name="toy", version="dev", seed=1, num_examples=30, num_heldout=4)
    build(recipe, tmp_path)
    folder = tmp_path / "artifacts" / recipe.address / "tasks"
    for task, count in (("story_cloze", 30), ("story_heldout", 4)):
        definition = yaml.safe_load((folder / f"{task}.yaml").read_text())
        assert definition["task"] == task
        name = definition["dataset_kwargs"]["data_files"]["test"]
        rows = [json.loads(line) for line in (folder / name).read_text().splitlines()]
        assert len(rows) == count
    rows = [json.loads(line) for line in (folder / "story_cloze.jsonl").read_text().splitlines()]
    assert len({row["kind"] for row in rows}) >= 5
    assert len({row["id"] for row in rows}) == 30


def test_tasks_on_stories_of_the_site_are_refused():
    with pytest.raises(ValueError, match="first=5"):
        StoryTasks(name="toy", version="dev", seed=1, num_examples=3, first=5)


def test_own_tasks_are_taken_in(tmp_path: Path):
    (tmp_path / "mine.yaml").write_text("task: mine\n")
    (tmp_path / "mine.jsonl").write_text("{}\n")
    recipe = LocalTasks(name="toy", version="dev", paths=(str(tmp_path / "mine.*"),))
    assert build(recipe, tmp_path / "store").numbers["tasks"] == 1
    folder = tmp_path / "store/artifacts" / recipe.address / "tasks"
    assert sorted(path.name for path in folder.iterdir()) == ["mine.jsonl", "mine.yaml"]


def test_own_tasks_without_yaml_are_refused(tmp_path: Path):
    (tmp_path / "mine.jsonl").write_text("{}\n")
    recipe = LocalTasks(name="toy", version="dev", paths=(str(tmp_path / "mine.jsonl"),))
    with pytest.raises(StageError, match="add the task's YAML"):
        build(recipe, tmp_path / "store")
