import itertools
import re

import numpy as np
import pytest

from marin_dagster.data import words as module
from marin_dagster.data.words import jaccard, ngram_hashes, text_hashes, word_hashes, words


def test_words_ignore_case_width_punctuation_and_line_breaks():
    plain = ["the", "straße", "is", "ﬁne", "and", "２"]
    assert words("The Straße\nis “ﬁne”, and ２!") == ["the", "strasse", "is", "fine", "and", "2"]
    assert words(" ".join(plain)) == words("THE STRASSE IS FINE AND 2")


def test_scripts_without_spaces_give_one_word_per_character():
    assert words("世界。hello") == ["世", "界", "hello"]


def test_an_ngram_hash_depends_on_its_words_and_their_order_only():
    def grams(text: str) -> list[int]:
        return ngram_hashes(word_hashes(text.split()), 3).tolist()

    assert len(grams("a b c d")) == 2
    assert grams("a b c d")[0] == grams("x a b c")[1]
    assert len({*grams("a b c"), *grams("c b a"), *grams("b a c"), *grams("a a b")}) == 4
    assert grams("a b") == []


def test_jaccard_is_shared_over_all():
    one, other = np.array([1, 2, 3], np.uint64), np.array([2, 3, 4], np.uint64)
    assert jaccard(one, other) == 0.5
    assert jaccard(one, np.empty(0, np.uint64)) == 0.0


def test_rolling_ngram_hashes_equal_those_of_each_run_alone():
    hashes = word_hashes([f"w{i % 37}" for i in range(300)])
    for size in (1, 5, 13):
        alone = [ngram_hashes(hashes[i : i + size], size)[0] for i in range(300 - size + 1)]
        assert ngram_hashes(hashes, size).tolist() == alone


def test_plain_and_other_text_are_split_alike():
    text = "".join(map(chr, range(128))) + " Don't STOP_here, 3.14 x-ray\tend"
    assert words(text) == words(text + " é")[:-1] == re.findall(r"\w+", text.lower())


TEXTS = ["", " ", "a", "Two words", " Ein «Größenmaß», 世界。\n", "x" * 3000 + " y " + "ab " * 500]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("at_once", [1, 7, 1 << 18])
def test_hashes_of_a_text_are_those_of_its_words(text, at_once, monkeypatch):
    monkeypatch.setattr(module, "_HASHED_BYTES", at_once)
    alone = [word_hashes([word])[0] for word in words(text)]
    assert text_hashes(text).tolist() == word_hashes(words(text)).tolist() == alone


def test_different_words_have_different_hashes():
    letters = "abcdefghijklmnopqrstuvwxyz0123456789_éß"
    tokens = [
        "".join(word) for size in (1, 2, 3) for word in itertools.product(letters, repeat=size)
    ]
    assert len(np.unique(word_hashes(tokens))) == len(tokens)
