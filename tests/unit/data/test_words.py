import re

import numpy as np

from marin_dagster.data.words import jaccard, ngram_hashes, word_hashes, words


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
