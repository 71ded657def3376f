"""One page in an extraction worker, with a stand-in for the extractor."""

from dataclasses import replace

import pytest

from marin_dagster.data.documents import clean_text
from marin_dagster.data.extract_worker import Settings, depth_exceeds, extract_page
from marin_dagster.data.extractors import make_chooser

SETTINGS = Settings(
    extractor="trafilatura",
    favor="precision",
    output="text",
    max_html_bytes=1000,
    max_depth=20,
    cpu_seconds=1.0,
    memory_bytes=10**9,
)


def test_a_failing_extractor_is_an_error_of_the_page():
    def fail(page: str) -> str:
        raise ValueError("no tree")

    answer = extract_page(b"<p>x", "text/html", SETTINGS, lambda page: [("one", fail)])
    assert (answer.error, answer.message) == ("extractor_failed", "one: ValueError: no tree")


def test_the_other_extractor_is_asked_when_the_first_fails_or_finds_nothing():
    def fail(page: str) -> str:
        raise ValueError("no tree")

    one, two, three = ("one", fail), ("two", lambda page: " "), ("three", lambda page: "text")
    answer = extract_page(b"<p>x", "text/html", SETTINGS, lambda page: [one, two, three])
    assert (answer.text, answer.extractor, answer.error) == ("text", "three", "")
    answer = extract_page(b"<p>x", "text/html", SETTINGS, lambda page: [one, two])
    assert (answer.text, answer.error) == ("", "extractor_failed")


def test_an_extractor_never_sees_control_characters_or_surrogates():
    seen = []
    see = ("one", lambda page: seen.append(page) or "")
    extract_page(b"<p>a\0b\x1bc", "text/html", SETTINGS, lambda page: [see])
    assert seen == ["<p>abc"]


def test_a_surrogate_in_the_answer_is_replaced():
    answer = extract_page(
        b"<p>x", "text/html", SETTINGS, lambda page: [("one", lambda page: "a\ud800b")]
    )
    assert answer.text == "a?b"


@pytest.mark.parametrize(
    ("page", "deep"),
    [
        ("<div>" * 30, True),
        ("<div></div>" * 30, False),
        ("<p>" * 30 + "<br>" * 30 + "<li>" * 30, False),
        ("<svg/>" * 30, False),
        ("<div>" * 15 + "</div>" * 15 + "<span>" * 15, False),
        ("</div>" * 30 + "<i>" * 30, True),
    ],
)
def test_depth_counts_what_is_open(page: str, deep: bool):
    assert depth_exceeds(page, 20) is deep


PROSE = (
    b"<p>" + 20 * b"The bridge was built by three brothers who wanted to see the sea. " + b"</p>"
)
MENU = b"<ul>" + 300 * b"<li><a href=/x>one</a></li>" + b"</ul>"
HOSTILE = {
    "nested": (b"<div>" * 20_000 + PROSE, "too_deep"),
    "unclosed": (b"<b>" * 100_000 + PROSE, "too_deep"),
    "large_text": (b"<p>" + b"word " * 2_000_000, "too_large"),
    "large_attribute": (b"<img src=data:" + b"QUJD" * 2_500_000 + b">" + PROSE, "too_large"),
    "large_prose": (PROSE * 19_000, "too_large"),
    "long_attribute": (b"<img src=data:" + b"QUJD" * 1_000_000 + b">" + PROSE, "kept"),
    "surrogates": (b"<p>&#xD800;</p>\xed\xa0\x80" + PROSE + b"&#xDFFF;", "kept"),
    "controls": (b"\0\x01" + PROSE.replace(b" ", b"\0 ", 9), "kept"),
    "menu": (MENU, "empty"),
    "code_that_never_ends": (b"<pre>" * 900 + PROSE, "kept"),
    "one_tag": (b"<p", "empty"),
}


@pytest.mark.parametrize("extractor", ["auto", "trafilatura", "resiliparse"])
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_page_ends_as_a_text_or_a_reason(name: str, extractor: str):
    settings = replace(SETTINGS, max_html_bytes=5_000_000, max_depth=1_000, extractor=extractor)
    choose = make_chooser(extractor, "precision", "text")
    body, expected = HOSTILE[name]
    answer = extract_page(b"<html><body>" + body, "text/html", settings, choose)
    assert not answer.error
    assert (answer.dropped or ("kept" if answer.text else "empty")) == expected
    if expected == "kept":
        assert "three brothers" in answer.text
        assert answer.text == clean_text(answer.text)
