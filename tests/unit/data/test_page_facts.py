"""What a page says of itself."""

import pytest

from marin_dagster.data.page_facts import PageFacts, read_facts


def page(head: str, body: str = "") -> str:
    return f"<!DOCTYPE html><html><head>{head}</head><body>{body}<p>Some text.</p></body></html>"


def test_a_page_that_says_nothing_has_no_facts():
    assert read_facts("") == read_facts("<p>Some text.") == PageFacts()


@pytest.mark.parametrize(
    ("head", "title"),
    [
        ("<title>The  bridge &amp;\n us</title>", "The bridge & us"),
        ("<meta property='og:title' content='A bridge'>", "A bridge"),
        ("<title>One</title><title>Two</title>", "One"),
    ],
)
def test_the_title_is_one_line_of_text(head: str, title: str):
    assert read_facts(page(head)).title == title


@pytest.mark.parametrize(
    ("head", "date"),
    [
        ('<meta property="article:published_time" content="2024-03-05T10:00:00Z">', "2024-03-05"),
        ('<meta name="DC.date" content="2019/7/1">', "2019-07-01"),
        ('<meta name="date" content="last week">', ""),
        ('<meta name="date" content="2024-13-05">', ""),
        ('<script type="application/ld+json">{"datePublished": "2021-02-03"}</script>',
         "2021-02-03"),
        ('<meta name="date" content="2020-01-01">'
         '<meta property="article:published_time" content="2018-01-01">', "2018-01-01"),
    ],
)  # fmt: skip
def test_the_date_is_that_of_publication(head: str, date: str):
    assert read_facts(page(head)).date == date


@pytest.mark.parametrize(
    ("head", "body", "licence"),
    [
        ("<link rel='license' href='https://creativecommons.org/licenses/by-sa/4.0/deed.de'>",
         "", "CC-BY-SA-4.0"),
        ("", "<a rel='license nofollow' href='//creativecommons.org/publicdomain/zero/1.0/'>x</a>",
         "CC0-1.0"),
        ("", "<footer><a href='http://creativecommons.org/licenses/by/3.0/us/'>x</a></footer>",
         "CC-BY-3.0"),
        ("", "<p><a href='http://creativecommons.org/licenses/by/3.0/'>an article</a></p>", ""),
        ("<meta name='dcterms.rights' content='All rights reserved'>", "", "All rights reserved"),
        ("<link rel='license' href='/licence.html'>", "", "/licence.html"),
    ],
)  # fmt: skip
def test_the_licence_is_what_is_marked_as_one(head: str, body: str, licence: str):
    assert read_facts(page(head, body)).license == licence
