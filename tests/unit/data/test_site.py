"""Websites for crawlers: made up, or a folder."""

import html
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from marin_dagster.data.site import FolderSite, GeneratedSite, serve
from marin_dagster.data.stories import HELD_OUT, story

SITE = GeneratedSite(host="stories.test", seed=1, num_pages=50, stories_per_page=2, num_leaked=3)


def test_a_page_is_the_same_each_time():
    assert SITE.answer("/stories/7") == SITE.answer("/stories/7")


def test_a_story_page_shows_its_stories_between_menus_and_adverts():
    page = html.unescape(SITE.answer("/stories/7").body.decode())
    assert all(part in page for part in story(1, 14).paragraphs)
    assert all(word in page for word in ("<nav>", "cookie-banner", "advertisement", "<footer"))


def test_just_the_leaked_stories_of_the_evaluation_are_shown():
    shown = [one.index for page in range(SITE.num_pages) for one in SITE.stories(page)]
    held_out = sorted(index for index in shown if index >= HELD_OUT)
    assert held_out == [HELD_OUT, HELD_OUT + 1, HELD_OUT + 2]


def test_a_copy_is_exact_and_a_print_page_is_nearly_the_same():
    assert SITE.answer("/copy/25").body == SITE.answer("/stories/25").body
    bare = html.unescape(SITE.answer("/print/20").body.decode())
    words = set(story(1, 40).text.split())
    found = words & set(bare.replace("<", " <").replace(">", "> ").split())
    assert len(found) > 0.9 * len(words)


@pytest.mark.parametrize(
    ("path", "status"),
    [("/gone", 404), ("/stories/50", 404), ("/stories/07", 404), ("/old-home", 301),
     ("/odd/broken", 500), ("/robots.txt", 200), ("/sitemap.xml", 200), ("/chapters/2", 200),
     ("/chapters/3", 404), ("/de/0", 200), ("/fr/0", 200), ("/es/0", 200), ("/private/x", 200)],
)  # fmt: skip
def test_odd_paths_have_the_status_that_they_say(path: str, status: int):
    assert SITE.answer(path).status == status


def test_the_latin1_page_is_not_utf8_and_says_so():
    answer = SITE.answer("/odd/latin1")
    assert "Märchen" in answer.body.decode("latin-1")
    assert "iso-8859-1" in answer.content_type
    with pytest.raises(UnicodeDecodeError):
        answer.body.decode()


def test_more_leaks_than_pages_are_refused():
    with pytest.raises(ValueError, match="num_leaked=9"):
        GeneratedSite(host="a.test", seed=0, num_pages=3, num_leaked=9)


def test_a_host_with_a_port_is_refused():
    with pytest.raises(ValueError, match="host="):
        FolderSite(host="a.test:80", folder=".")


def test_a_folder_shows_its_files_and_nothing_outside(tmp_path: Path):
    (tmp_path / "secret.html").write_text("no")
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "a b.html").write_text("<p>hi")
    (inside / "link.html").symlink_to(tmp_path / "secret.html")
    site = FolderSite(host="folder.test", folder=str(inside))
    assert site.answer("/a%20b.html").body == b"<p>hi"
    assert b'href="/a%20b.html"' in site.answer("/").body
    for path in ("/../secret.html", "/link.html", "/%2e%2e/secret.html", "/none.html"):
        assert site.answer(path).status == 404


def test_a_served_site_answers_under_its_own_name():
    with serve([SITE]) as proxy:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({"http": proxy}))
        with opener.open("http://stories.test/stories/7") as answer:
            assert answer.read() == SITE.answer("/stories/7").body
        with pytest.raises(urllib.error.HTTPError, match="502"):
            opener.open("http://other.test/")
