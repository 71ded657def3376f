"""The exported tokenizer gives the same ids as ours, in Hugging Face's `tokenizers`."""

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from marin_dagster.data.tokenizer import load_tokenizer
from marin_dagster.data.tokenizer_gate import odd_strings
from tests.unit.data.corpus import TOKENIZER, build_tokenizer, text


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    root = build_tokenizer(tmp_path_factory.mktemp("export"))
    folder = root / "artifacts" / TOKENIZER.address
    exported = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    return load_tokenizer(str(folder)), exported


def test_odd_strings_and_texts_get_equal_ids(pair):
    ours, exported = pair
    for content in [*odd_strings(), *map(text, range(100))]:
        if not ours.count_control_spellings(content):
            ids = exported.encode(content, add_special_tokens=False).ids
            assert ids == ours.encode(content), content
            assert exported.decode(ids) == content


@given(st.text("ab trhe\u2581\n 0é日", max_size=80))
@settings(max_examples=500, deadline=None)
def test_repetitive_text_gets_equal_ids(pair, content):
    ours, exported = pair
    assert exported.encode(content, add_special_tokens=False).ids == ours.encode(content)


def test_an_encoded_text_opens_with_one_bos(pair):
    ours, exported = pair
    assert exported.encode("the robot").ids == ours.encode_prompt("the robot")
