"""Tokenizing keeps every text, splits by id, and trains on what the assistant writes only."""

import dataclasses
import json
from pathlib import Path

import pytest
import zstandard

from marin_dagster.data.documents import read_documents
from marin_dagster.data.token_cache import TokenCacheReader
from marin_dagster.data.tokenize import (
    TokenizeConversations,
    TokenizeDocuments,
    check_supervised_share,
)
from marin_dagster.data.tokenizer import load_tokenizer
from marin_dagster.recipe import Placement, StageError
from tests.fake_context import build
from tests.unit.data.corpus import (
    CHATS,
    CORPUS,
    TOKENIZER,
    ChatCorpus,
    TextCorpus,
    build_tokenizer,
    text,
)
from tests.unit.data.toy_documents import in_this_process

TOKENS = TokenizeDocuments(name="toy", version="dev", documents=CORPUS, tokenizer=TOKENIZER)
CHAT_TOKENS = TokenizeConversations(
    name="chat", version="dev", conversations=CHATS, tokenizer=TOKENIZER, seq_len=512
)


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    return build_tokenizer(tmp_path_factory.mktemp("tokenize"))


@pytest.fixture
def here():
    with in_this_process():
        yield


def folder(root: Path, recipe) -> Path:
    return root / "artifacts" / recipe.address


def read(root: Path, recipe) -> TokenCacheReader:
    return TokenCacheReader(str(folder(root, recipe)))


@pytest.mark.usefixtures("here")
def test_every_document_is_there_between_bos_and_eos(root):
    summary = build(TOKENS, root)
    reader = read(root, TOKENS)
    tokenizer = load_tokenizer(str(root / "artifacts" / TOKENIZER.address))
    documents = list(read_documents(str(root / "artifacts" / CORPUS.address)))
    assert reader.num_documents == len(documents)
    for index, document in enumerate(documents):
        ids = reader.document(index).tolist()
        assert ids == [tokenizer.bos_id, *tokenizer.encode(document["text"]), tokenizer.eos_id]
    assert summary.numbers["tokens"] == reader.num_tokens
    told = {"bytes": reader.text_bytes, "tokens": reader.num_tokens}
    told |= {"bytes_per_token": round(reader.text_bytes / reader.num_tokens, 4)}
    assert summary.tables["Compression by source"] == [{"source": "toy", **told}]
    assert summary.tables["Compression by language"] == [{"language": "unknown", **told}]
    assert reader.text_bytes == sum(len(d["text"].encode()) for d in documents)


@pytest.mark.parametrize("recipe", [TOKENS, CHAT_TOKENS], ids=["documents", "chats"])
def test_workers_and_parts_that_are_left_do_not_change_the_bytes(root, tmp_path, recipe):
    with in_this_process():
        build(recipe, root)
    expected = {path.name: path.read_bytes() for path in folder(root, recipe).iterdir()}
    build_tokenizer(tmp_path)
    made: dict[Path, int] = {}
    for workers in (3, 1):
        build(recipe, tmp_path, placement=Placement(workers=workers))
        found = folder(tmp_path, recipe)
        assert {path.name: path.read_bytes() for path in found.iterdir()} == expected
        parts = sorted((tmp_path / "work").rglob("tokens.bin"))
        if workers == 1:
            again = [path.parent.name for path in parts if path.stat().st_mtime_ns != made[path]]
            assert again == [parts[-1].parent.name]  # the one that was cut, no other
        made = {path: path.stat().st_mtime_ns for path in parts}
        parts[-1].write_bytes(parts[-1].read_bytes()[:-1])


def test_bad_rows_and_texts_are_counted_and_the_others_kept(tmp_path):
    build_tokenizer(tmp_path)
    corpus = TextCorpus(name="bad", version="dev", size=0)
    shard = folder(tmp_path, corpus) / "documents" / "00000.jsonl.zst"
    shard.parent.mkdir(parents=True)
    good = [json.dumps({"id": f"{n}", "text": text(n)}).encode() for n in range(300)]
    lone = b'{"id": "lone", "text": "a \xed\xa0\x80 b"}'  # a surrogate, as JSON of bytes lets it by
    rows = [*good[:200], b'{"id": "cut', lone, *good[200:]]
    shard.write_bytes(zstandard.compress(b"\n".join(rows)))
    with in_this_process():
        summary = build(dataclasses.replace(TOKENS, name="bad", documents=corpus), tmp_path)
    assert summary.counts is not None
    assert summary.counts.errors == {"bad_json": 1, "not_encodable": 1}
    assert (summary.counts.kept, summary.counts.balance) == (300, 0)
    assert [row["id"] for row in summary.tables["errors"]] == ["00000.jsonl.zst line 201", "lone"]


@pytest.mark.usefixtures("here")
def test_the_two_splits_share_out_the_documents(root):
    found = {}
    for split in ("train", "validation"):
        recipe = dataclasses.replace(TOKENS, name=split, split=split, validation_fraction=0.2)
        summary = build(recipe, root)
        assert summary.counts is not None
        assert summary.counts.balance == 0
        path = root / "artifacts" / recipe.address / "provenance.jsonl.zst"
        lines = zstandard.ZstdDecompressor().decompressobj().decompress(path.read_bytes())
        found[split] = {json.loads(line)["id"] for line in lines.splitlines()}
    assert not found["train"] & found["validation"]
    assert len(found["train"] | found["validation"]) == 200
    assert 20 <= len(found["validation"]) <= 60


@pytest.mark.usefixtures("here")
def test_a_text_that_spells_control_pieces_is_kept_counted_and_harmless(root):
    corpus = TextCorpus(name="spell", version="dev", size=3, extra=("a </s> b <|end|> c",))
    build(corpus, root)
    recipe = dataclasses.replace(TOKENS, name="spell", documents=corpus)
    summary = build(recipe, root)
    assert summary.numbers["control_spellings"] == 2
    reader = read(root, recipe)
    assert all(i >= 8 for i in reader.document(3)[1:-1])


@pytest.mark.usefixtures("here")
def test_a_split_without_documents_is_refused_with_the_reasons(root):
    corpus = TextCorpus(name="hollow", version="dev", size=0, extra=("",))
    build(corpus, root)
    with pytest.raises(StageError, match=r"kept 0 of 1 documents: 1 empty; check"):
        build(dataclasses.replace(TOKENS, name="hollow", documents=corpus), root)


@pytest.mark.usefixtures("here")
def test_the_loss_falls_on_the_assistant_and_the_end_of_its_turn(root):
    summary = build(CHAT_TOKENS, root)
    reader = read(root, CHAT_TOKENS)
    tokenizer = load_tokenizer(str(root / "artifacts" / TOKENIZER.address))
    end, assistant = tokenizer.token_id("<|end|>"), tokenizer.token_id("<|assistant|>")
    for index in range(reader.num_documents):
        ids, weights = reader.document(index), reader.document_weights(index)
        inside = False
        for token, weight in zip(ids.tolist(), weights.tolist(), strict=True):
            assert weight == float(inside)
            inside = token == assistant or (inside and token != end)
        assert weights.sum() > 0
    assert 0 < summary.numbers["supervised_share"] < 1
    assert "+ " in summary.notes["One conversation as it is trained on"]


@pytest.mark.usefixtures("here")
def test_a_conversation_that_does_not_fit_is_dropped_whole_and_counted(root):
    summary = build(dataclasses.replace(CHAT_TOKENS, name="short", seq_len=300), root)
    assert summary.counts is not None
    assert summary.counts.dropped["longer_than_seq_len"] > 0
    assert summary.counts.balance == 0


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("roles", "reason"),
    [(("user", "system"), "40 no_assistant_turn"), (("user", "tool"), "40 unknown_role")],
)
def test_chats_without_an_assistant_are_refused(root, roles, reason):
    chats = ChatCorpus(name="mute", version="dev", roles=roles)
    build(chats, root)
    with pytest.raises(StageError, match=f"kept 0 of 40 documents: {reason}"):
        build(dataclasses.replace(CHAT_TOKENS, name="mute", conversations=chats), root)


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_a_mask_of_all_or_nothing_is_refused(share):
    with pytest.raises(StageError, match="supervised share of sft/x"):
        check_supervised_share(share, "sft/x")


def test_bad_splits_are_refused():
    with pytest.raises(ValueError, match=r"validation_fraction=0\.0 .* such as 0\.01"):
        dataclasses.replace(TOKENS, split="validation")
    with pytest.raises(ValueError, match="split='test'"):
        dataclasses.replace(TOKENS, split="test")
    with pytest.raises(ValueError, match="seq_len=1"):
        dataclasses.replace(CHAT_TOKENS, seq_len=1)
