"""An imported tokenizer gives the ids that it had, passes the same gate, or is refused."""

import dataclasses
import json
from pathlib import Path

import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from marin_dagster.data.token_cache import TokenCacheReader
from marin_dagster.data.tokenize import TokenizeConversations, TokenizeDocuments
from marin_dagster.data.tokenizer import CHAT_PIECES, load_tokenizer
from marin_dagster.data.tokenizer_gate import odd_strings
from marin_dagster.data.tokenizer_import import ImportTokenizer
from marin_dagster.recipe import StageError
from tests.fake_context import build
from tests.unit.data.corpus import CHATS, CORPUS, text
from tests.unit.data.toy_documents import in_this_process

END = "<|endoftext|>"


def write_foreign(folder: Path, normalizer=None) -> tokenizers.Tokenizer:
    """A byte-level BPE with one special token and one added word, as `transformers` saves it."""
    foreign = tokenizers.Tokenizer(models.BPE())
    foreign.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    foreign.decoder = decoders.ByteLevel()
    foreign.post_processor = processors.ByteLevel(trim_offsets=False)
    if normalizer:
        foreign.normalizer = normalizer
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=350, special_tokens=[END], initial_alphabet=alphabet, show_progress=False
    )
    foreign.train_from_iterator(map(text, range(200)), trainer)
    foreign.add_tokens(["robot"])
    foreign.enable_truncation(16)
    folder.mkdir(parents=True)
    foreign.save(str(folder / "tokenizer.json"))
    end = {"content": END, "lstrip": False, "normalized": False, "special": True}
    config = {"bos_token": END, "eos_token": end, "pad_token": None, "model_max_length": 16}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    foreign.no_truncation()
    return foreign


def imported(folder: Path, **fields) -> ImportTokenizer:
    return ImportTokenizer(
        **{"name": "x", "version": "dev", "repo": str(folder), "revision": "local", **fields}
    )


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    root = tmp_path_factory.mktemp("import")
    foreign = write_foreign(root / "foreign")
    recipe = imported(root / "foreign")
    summary = build(recipe, root)
    return root, foreign, recipe, summary


def test_text_has_the_ids_that_it_had_and_control_tokens_come_by_number_only(built):
    root, foreign, recipe, summary = built
    ours = load_tokenizer(str(root / "artifacts" / recipe.address))
    for content in [*odd_strings(), *map(text, range(50))]:
        assert ours.encode(content) == foreign.encode(content, add_special_tokens=False).ids
    size = foreign.get_vocab_size()
    assert [ours.token_id(piece) for piece in ("<pad>", *CHAT_PIECES)] == [*range(size, size + 5)]
    assert ours.vocab_size == summary.numbers["vocab_size"] == size + 5
    assert ours.bos_id == ours.eos_id == foreign.token_to_id(END)
    forged = f"a {END} b {CHAT_PIECES[0]}"
    assert not any(map(ours.is_control, ours.encode(forged)))
    assert ours.decode([ours.bos_id, *ours.encode(forged), ours.pad_id]) == forged
    assert ours.count_control_spellings(forged) == 2
    assert ours.visible([ours.bos_id, *ours.encode("hi")]) == f"{END}hi"
    assert summary.numbers["round_trip_strings"] > 190
    with pytest.raises(KeyError, match="not in this vocabulary"):
        ours.token_id("<|tool|>")
    with pytest.raises(ValueError, match="pass it through clean_text"):
        ours.encode("\ud800")


def test_token_caches_of_documents_and_chats_are_made_with_it(built):
    root, foreign, recipe, _ = built
    base = {"name": "imported", "version": "dev", "tokenizer": recipe}
    texts = TokenizeDocuments(**base, documents=CORPUS)
    chats = TokenizeConversations(**{**base, "name": "chats"}, conversations=CHATS, seq_len=1_000)
    with in_this_process():
        for one in (CORPUS, CHATS, texts, chats):
            build(one, root)
    reader = TokenCacheReader(str(root / "artifacts" / texts.address))
    end = foreign.token_to_id(END)
    for number in (0, 7, 199):
        ids = foreign.encode(text(number), add_special_tokens=False).ids
        assert reader.document(number).tolist() == [end, *ids, end]
    reader = TokenCacheReader(str(root / "artifacts" / chats.address))
    ours = load_tokenizer(str(root / "artifacts" / recipe.address))
    assert ours.visible(reader.document(0).tolist()).startswith(f"{END}<|user|>Story 0.")


def test_a_tokenizer_that_damages_text_is_refused(tmp_path):
    write_foreign(tmp_path / "nfc", normalizers.NFC())
    with pytest.raises(StageError, match=r"do not survive.*normalizes nothing"):
        build(imported(tmp_path / "nfc"), tmp_path)


def test_what_cannot_be_imported_is_named(tmp_path, monkeypatch):
    write_foreign(tmp_path / "foreign")
    (tmp_path / "foreign" / "tokenizer_config.json").unlink()
    with pytest.raises(StageError, match=r"bos='' .* such as one of \['<\|endoftext\|>', 'rob"):
        build(imported(tmp_path / "foreign"), tmp_path)
    build(imported(tmp_path / "foreign", bos=END, eos=END), tmp_path)
    with pytest.raises(StageError, match=r"eos='</s>' .* is not in the vocabulary"):
        build(imported(tmp_path / "foreign", bos=END, eos="</s>"), tmp_path)
    (tmp_path / "foreign" / "tokenizer.json").write_text("{}")
    with pytest.raises(StageError, match=r"tokenizer\.json is not a tokenizer"):
        build(imported(tmp_path / "foreign"), tmp_path)
    (tmp_path / "foreign" / "tokenizer.json").unlink()
    with pytest.raises(StageError, match=r"tokenizer\.json is missing.*save_pretrained"):
        build(imported(tmp_path / "foreign"), tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(StageError, match=r"repo='no/such' at revision='v1' cannot be read"):
        build(imported(tmp_path, repo="no/such", revision="v1"), tmp_path)
    with pytest.raises(ValueError, match="revision='' of tokenizers/x@dev is empty"):
        dataclasses.replace(imported(tmp_path), revision="")
