from pathlib import Path

import pytest

from marin_dagster.data.documents import (
    ConversationWriter,
    DocumentWriter,
    clean_text,
    document_id,
    new_document,
    read_conversations,
    read_documents,
    shard_paths,
)
from marin_dagster.recipe import StageError


def write(folder: Path, texts: list[str], shard_documents: int = 2, last_id: str = "") -> list[str]:
    with DocumentWriter(str(folder), shard_documents) as writer:
        for text in texts:
            document = new_document(text, source="test", metadata={"language": "en"})
            if last_id and text == texts[-1]:
                document["id"] = last_id
            writer.write(document)
    return shard_paths(str(folder))


def test_documents_come_back_in_order_over_shards(tmp_path):
    texts = ["one", "zwei\nZeilen", "trois", "四", ""]
    paths = write(tmp_path, texts)
    assert [Path(path).name for path in paths] == [f"0000{n}.jsonl.zst" for n in range(3)]
    read = list(read_documents(str(tmp_path)))
    assert [document["text"] for document in read] == texts
    assert list(read[0]) == ["id", "text", "source", "created", "added", "metadata"]
    assert read[0]["id"] == document_id("one")


def test_the_same_documents_give_the_same_bytes(tmp_path):
    first, second = (write(tmp_path / name, ["a" * 1000, "é"]) for name in ("first", "second"))
    assert [Path(p).read_bytes() for p in first] == [Path(p).read_bytes() for p in second]


def test_clean_text_removes_what_later_stages_cannot_take():
    assert clean_text("a\0b\ud800c\r\nd\re\x1b\tf\x7f") == "ab?c\nd\ne\tf"
    assert clean_text("naïve 日本 👍🏽") == "naïve 日本 👍🏽"


def test_an_interrupted_writer_leaves_no_half_shard(tmp_path):
    with pytest.raises(ValueError, match="lone surrogate"):
        write(tmp_path, ["a", "b", "c", "d"], shard_documents=2, last_id="\ud800")
    assert [path.name for path in (tmp_path / "documents").iterdir()] == ["00000.jsonl.zst"]


def test_a_bad_line_is_named_by_file_and_line(tmp_path):
    (path,) = write(tmp_path, ["a"])
    import zstandard

    lines = b'{"id": "x", "text": "y"}\n{"id": "x"}\n'
    Path(path).write_bytes(zstandard.ZstdCompressor().compress(lines))
    with pytest.raises(StageError, match=r"00000\.jsonl\.zst line 2 is not a valid row"):
        list(read_documents(str(tmp_path)))


def test_a_cut_shard_is_refused(tmp_path):
    (path,) = write(tmp_path, ["a" * 5000])
    Path(path).write_bytes(Path(path).read_bytes()[:-1])
    with pytest.raises(StageError, match="is cut"):
        list(read_documents(str(tmp_path)))


def test_a_folder_without_shards_is_refused(tmp_path):
    with pytest.raises(StageError, match="holds no"):
        shard_paths(str(tmp_path))


def test_conversations_come_back(tmp_path):
    chat = {
        "id": "c",
        "messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}],
        "source": "test",
        "metadata": {},
    }
    with ConversationWriter(str(tmp_path)) as writer:
        writer.write(chat)
    assert list(read_conversations(str(tmp_path))) == [chat]
