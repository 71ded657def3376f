"""One page in an extraction worker, with a stand-in for the extractor."""

import pytest

from marin_dagster.data.extract_worker import Settings, depth_exceeds, extract_page

SETTINGS = Settings(
    extractor="trafilatura",
    favor="precision",
    max_html_bytes=1000,
    max_depth=20,
    cpu_seconds=1.0,
    memory_bytes=10**9,
)


def test_a_failing_extractor_is_an_error_of_the_page():
    def fail(page: str) -> str:
        raise ValueError("no tree")

    answer = extract_page(b"<p>x", "text/html", SETTINGS, [("one", fail)])
    assert (answer.error, answer.message) == ("extractor_failed", "one: ValueError: no tree")


def test_an_extractor_never_sees_control_characters_or_surrogates():
    seen = []
    see = [("one", lambda page: seen.append(page) or "")]
    extract_page(b"<p>a\0b\x1bc", "text/html", SETTINGS, see)
    assert seen == ["<p>abc"]


def test_a_surrogate_in_the_answer_is_replaced():
    answer = extract_page(b"<p>x", "text/html", SETTINGS, [("one", lambda page: "a\ud800b")])
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
