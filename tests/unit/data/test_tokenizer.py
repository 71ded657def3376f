"""The tokenizer loses no byte, yields no control id from text, and says why it cannot be made."""

import dataclasses
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st

from marin_dagster.data import tokenizer_gate
from marin_dagster.data.tokenizer import (
    CONTROL_PIECES,
    MODEL_FILE,
    SentencePieceTokenizer,
    TextTokenizer,
    TrainTokenizer,
    load_tokenizer,
)
from marin_dagster.recipe import StageError
from tests.fake_context import build
from tests.unit.data.corpus import CORPUS, TOKENIZER, TextCorpus, build_tokenizer, text


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    return build_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="module")
def tokenizer(root) -> TextTokenizer:
    return load_tokenizer(str(root / "artifacts" / TOKENIZER.address))


@given(st.text(st.characters(exclude_categories=("Cs",))))
@settings(max_examples=300, deadline=None)
def test_any_text_comes_back_byte_for_byte(tokenizer, content):
    ids = tokenizer.encode(content)
    assert tokenizer.decode(ids) == content
    assert all(i >= len(CONTROL_PIECES) for i in ids)


def test_odd_strings_come_back_and_are_many(tokenizer):
    assert tokenizer_gate.check_round_trip(tokenizer) >= 190


def test_a_literal_space_mark_is_not_a_space(tokenizer):
    assert tokenizer.decode(tokenizer.encode("a\u2581b c")) == "a\u2581b c"


def test_text_that_spells_control_pieces_stays_text(tokenizer):
    content = " ".join(CONTROL_PIECES)
    assert min(tokenizer.encode(content)) >= len(CONTROL_PIECES)
    assert tokenizer.count_control_spellings(content) == len(CONTROL_PIECES)


def test_control_pieces_have_the_first_ids(tokenizer):
    assert [tokenizer.token_id(piece) for piece in CONTROL_PIECES] == list(range(8))
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.pad_id) == (1, 2, 3)
    with pytest.raises(KeyError, match="not in this vocabulary"):
        tokenizer.token_id("<|tool|>")


@given(st.lists(st.sampled_from([" ", "  ", "   ", "\n", "\t", "the", "The", "é", "9", "."])))
@settings(max_examples=300, deadline=None)
def test_words_that_are_remembered_have_the_ids_of_the_whole_text(root, tokenizer, parts):
    model = root / "artifacts" / TOKENIZER.address / MODEL_FILE
    whole = sentencepiece.SentencePieceProcessor(model_file=str(model))
    assert tokenizer.encode("".join(parts)) == whole.encode("".join(parts))


def test_memory_of_words_is_bounded(tokenizer, monkeypatch):
    monkeypatch.setattr("marin_dagster.data.tokenizer.KNOWN_WORDS", 10)
    fresh = SentencePieceTokenizer(tokenizer._processor.serialized_model_proto())
    long = "x" * 1000
    for number in range(20):
        one = f"number {number} {long}"
        assert fresh.encode(one) == tokenizer.encode(one)
        assert len(fresh._known) < 20
        assert long not in fresh._known


def test_batches_change_nothing(tokenizer):
    texts = [text(i) for i in range(50)]
    one_by_one = [tokenizer.encode(content) for content in texts]
    assert [ids.tolist() for ids in tokenizer.encode_batch(texts)] == one_by_one


def test_threads_may_share_a_tokenizer(tokenizer, monkeypatch):
    monkeypatch.setattr("marin_dagster.data.tokenizer.KNOWN_WORDS", 3)  # forgets all the time
    shared = SentencePieceTokenizer(tokenizer._processor.serialized_model_proto())
    long = "x" * 100
    texts = [f"{text(i)} {long} {i % 7}" for i in range(60)]
    expected = [tokenizer.encode(content) for content in texts]
    old = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(lambda _: [shared.encode(one) for one in texts], range(8)))
    finally:
        sys.setswitchinterval(old)
    assert all(ids == expected for ids in found)


def test_digits_stand_alone(tokenizer):
    assert len(tokenizer.encode("48151")) == 5


def test_training_twice_gives_the_same_bytes(root, tmp_path):
    build(CORPUS, tmp_path)
    build(TOKENIZER, tmp_path)
    for name in ("tokenizer.model", "tokenizer.json", "tokenizer_config.json"):
        first = root / "artifacts" / TOKENIZER.address / name
        again = tmp_path / "artifacts" / TOKENIZER.address / name
        assert first.read_bytes() == again.read_bytes(), name


def test_the_sample_keeps_to_its_budget_and_depends_on_the_seed(tmp_path):
    build(CORPUS, tmp_path)
    kept = set()
    for seed in (1, 2):
        recipe = TrainTokenizer(
            name=f"s{seed}",
            version="dev",
            documents=(CORPUS,),
            vocab_size=300,
            sample_bytes=9_000,
            seed=seed,
        )
        summary = build(recipe, tmp_path)
        assert 3_000 < summary.numbers["sampled_bytes"] <= 9_000
        assert summary.counts is not None
        assert summary.counts.balance == 0
        assert summary.counts.dropped["over_sample_bytes"] > 0
        kept.add((tmp_path / "artifacts" / recipe.address / "tokenizer.model").read_bytes())
    assert len(kept) == 2


def test_compression_is_told_by_source_and_language(tmp_path, monkeypatch):
    monkeypatch.setattr("marin_dagster.data.tokenizer.SHOWN_DOCUMENTS", 120)
    inputs = [TextCorpus(name=name, version="dev", language=name) for name in ("en", "de")]
    for corpus in inputs:
        build(corpus, tmp_path)
    recipe = dataclasses.replace(TOKENIZER, name="told", documents=tuple(inputs))
    summary = build(recipe, tmp_path)
    (by_source,), by_language = (
        summary.tables[f"Compression by {by}"] for by in ("source", "language")
    )
    assert by_source["source"] == "toy"
    assert by_source["bytes_per_token"] == summary.numbers["bytes_per_token"]
    assert {row["language"] for row in by_language} == {"en", "de"}
    assert sum(row["tokens"] for row in by_language) == by_source["tokens"]
    tokenizer = load_tokenizer(str(tmp_path / "artifacts" / recipe.address))
    every = sum(2 * len(tokenizer.encode(text(number))) for number in range(200))
    assert 0.2 * every < by_source["tokens"] < 0.4 * every  # 120 of 400, whatever their input


def test_too_large_a_vocabulary_is_refused_with_the_largest_that_fits(tmp_path):
    build(CORPUS, tmp_path)
    recipe = TrainTokenizer(name="big", version="dev", documents=(CORPUS,), vocab_size=50_000)
    with pytest.raises(StageError, match=r"vocab_size=50000 .* set vocab_size to at most \d+"):
        build(recipe, tmp_path)


def test_an_empty_input_is_refused(tmp_path):
    empty = TextCorpus(name="empty", version="dev", size=1)
    build(empty, tmp_path)
    shard = tmp_path / "artifacts" / empty.address / "documents" / "00000.jsonl.zst"
    import zstandard

    shard.write_bytes(zstandard.compress(b""))
    recipe = TrainTokenizer(name="none", version="dev", documents=(empty,), vocab_size=300)
    with pytest.raises(StageError, match="kept 0 of 0 documents"):
        build(recipe, tmp_path)


def test_a_tokenizer_that_damages_text_does_not_pass_the_gate(tokenizer, monkeypatch):
    monkeypatch.setattr(tokenizer_gate, "odd_strings", lambda control: ["fine", "a b"])
    monkeypatch.setattr(SentencePieceTokenizer, "decode", lambda self, ids: "fine")
    with pytest.raises(StageError, match=r"1 of 2 strings do not survive.*'a b'"):
        tokenizer_gate.check_round_trip(tokenizer)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"vocab_size": 100}, "vocab_size=100"),
        ({"sample_bytes": 0}, "sample_bytes=0"),
        ({"documents": ()}, "documents=()"),
    ],
)
def test_bad_fields_are_refused_with_their_value(fields, message):
    with pytest.raises(ValueError, match=message.replace("(", r"\(").replace(")", r"\)")):
        TrainTokenizer(
            **{"name": "x", "version": "dev", "documents": (CORPUS,), "vocab_size": 300, **fields}
        )
