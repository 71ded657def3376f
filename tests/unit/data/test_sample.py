"""Rows to look at: drawn evenly, the same for one seed, from every kind of data."""

import json
import random
from collections import Counter

import pytest

from marin_dagster.data.documents import ConversationWriter, DocumentWriter, new_document
from marin_dagster.data.sample import _reservoir, draw
from marin_dagster.data.token_cache import TokenCacheReader
from marin_dagster.data.tokenizer import load_tokenizer
from marin_dagster.recipe import StageError
from tests.fake_context import FakeContext, build
from tests.unit.data.corpus import TOKENIZER, build_tokenizer
from tests.unit.data.toy_documents import in_this_process
from tests.unit.training.test_pretrain import TRAIN


def test_every_item_of_a_stream_has_the_same_chance_and_keeps_its_order():
    rng, seen = random.Random(0), Counter[int]()
    for _ in range(3000):
        drawn = list(_reservoir(range(10), 3, rng))
        assert len(set(drawn)) == 3
        seen.update(drawn)
    assert all(800 < seen[item] < 1000 for item in range(10))
    assert list(_reservoir(range(2), 3, rng)) == [0, 1]


def test_documents_are_drawn_from_all_shards_and_again_by_the_seed(tmp_path):
    with DocumentWriter(str(tmp_path), shard_documents=4) as writer:
        for number in range(40):
            writer.write(
                new_document(
                    text=f"text {number}", source="somewhere", metadata={"url": f"u{number}"}
                )
            )
    rows = draw(str(tmp_path), 12, 0, None)
    assert rows == draw(str(tmp_path), 12, 0, None) != draw(str(tmp_path), 12, 1, None)
    assert len({row.where for row in rows}) == len(rows) == 12
    assert len({row.where.split()[0] for row in rows}) > 3
    assert all(row.text == f"text {row.source[1:]}" for row in rows)


def test_chats_and_pages_are_drawn_too(tmp_path):
    chats, pages = tmp_path / "chats", tmp_path / "pages"
    pages.mkdir()
    said = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]
    with ConversationWriter(str(chats)) as writer:
        writer.write({"id": "a", "messages": said, "source": "s", "metadata": {}})
    assert draw(str(chats), 1, 0, None)[0].text == "user: hi\nassistant: ho"
    row = {"url": "http://x", "status": 404, "outcome": "http_404", "bytes": 9, "message": ""}
    (pages / "crawl.jsonl").write_text(json.dumps(row) + "\n")
    (page,) = draw(str(pages), 5, 0, None)
    assert (page.source, page.id) == ("http://x", "http_404, status 404, 9 bytes")


def test_tokens_are_shown_as_the_model_reads_them(tmp_path):
    build_tokenizer(tmp_path)
    with in_this_process():
        build(TRAIN, tmp_path)
    ctx = FakeContext(TRAIN, tmp_path)
    tokenizer = load_tokenizer(ctx.path(TOKENIZER))
    (row, *_) = draw(ctx.path(TRAIN), 2, 0, tokenizer)
    index = int(row.where.split()[1].rstrip(","))
    ids = TokenCacheReader(ctx.path(TRAIN)).document(index)
    assert row.text == tokenizer.visible(ids.tolist())


def test_what_has_no_rows_is_refused(tmp_path):
    with pytest.raises(StageError, match="no rows to draw from"):
        draw(str(tmp_path), 1, 0, None)
