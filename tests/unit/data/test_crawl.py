"""Crawls of served sites, and pages taken in from files."""

import gzip
import json
import random
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from marin_dagster.data.crawl import Crawl, ImportHtml, ImportWarc
from marin_dagster.data.site import Answer, FolderSite, GeneratedSite
from marin_dagster.data.warc import Page, read_pages
from marin_dagster.recipe import StageError, Summary
from tests.fake_context import FakeContext, build

HOST = "odd.test"


@dataclass(frozen=True, kw_only=True)
class ToySite:
    """Answers from a table, and remembers who asked when; a path in `silent` gets no answer."""

    host: str
    answers: dict[str, Answer]
    silent: tuple[str, ...] = ()
    asked: list[tuple[str, float]] = field(default_factory=list)
    never: threading.Event = field(default_factory=threading.Event)

    def answer(self, path: str) -> Answer:
        self.asked.append((path, time.monotonic()))
        if path in self.silent:
            self.never.wait(30)
        missing = Answer(status=404, content_type="text/plain", body=b"no")
        return self.answers.get(path, missing)

    @property
    def paths(self) -> list[str]:
        return [path for path, _ in self.asked]


def page(*links: str, text: str = "hello") -> Answer:
    body = f"<html><p>{text}</p>" + "".join(f'<a href="{link}">x</a>' for link in links)
    return Answer(status=200, content_type="text/html", body=body.encode())


def move(target: str) -> Answer:
    return Answer(status=302, content_type="text/html", body=b"", headers=(("Location", target),))


def text(body: str, status: int = 200) -> Answer:
    return Answer(status=status, content_type="text/plain", body=body.encode())


def crawl(site: Any, **fields: Any) -> Crawl:
    fields = {"max_pages": 100, "seeds": (f"http://{site.host}/",), **fields}
    return Crawl(name="toy", version="dev", sites=(site,), **fields)


def outcomes(root: Path) -> dict[str, str]:
    lines = (root / "artifacts" / "crawl/toy@dev" / "crawl.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert len({row["url"] for row in rows}) == len(rows)
    return {row["url"].removeprefix(f"http://{HOST}"): row["outcome"] for row in rows}


def balanced(summary: Summary) -> bool:
    return summary.counts is not None and summary.counts.balance == 0


def test_a_generated_site_is_crawled_to_the_same_bytes_twice(tmp_path: Path):
    site = GeneratedSite(host="stories.test", seed=0, num_pages=12, stories_per_page=1)
    files = []
    for name in ("one", "two"):
        summary = build(crawl(site), tmp_path / name)
        assert balanced(summary)
        folder = tmp_path / name / "artifacts" / "crawl/toy@dev"
        files.append([(folder / f).read_bytes() for f in ("warc/00000.warc.gz", "crawl.jsonl")])
    assert files[0] == files[1]
    found = list(read_pages(str(tmp_path / "one/artifacts/crawl/toy@dev/warc/00000.warc.gz")))
    urls = [item.url.removeprefix("http://stories.test") for item in found]
    assert {f"/stories/{number}" for number in range(12)} <= set(urls)
    assert not any("/private/" in url for url in urls)
    first = next(item for item in found if item.url.endswith("/stories/3"))
    assert isinstance(first, Page)
    assert first.body == site.answer("/stories/3").body


def test_every_odd_answer_has_its_outcome(tmp_path: Path):
    answers = {
        "/": page("/a", "/a#part", "/large", "/packed", "/slow", "/loop", "/away", "/private",
                  "/broken", "/file", "/file.png", "http://elsewhere.test/", "mailto:a@b", "/b"),
        "/a": page("/deep"),
        "/b": move("/target"),
        "/target": page(),
        "/deep": page("/deeper"),
        "/deeper": page(),
        "/large": page(text=random.Random(0).randbytes(40_000).hex()),
        "/packed": page(text="x" * 50_000),
        "/loop": move("/loop"),
        "/away": move("http://elsewhere.test/"),
        "/broken": text("oh", 503),
        "/file": Answer(status=200, content_type="image/png", body=b"\x89PNG"),
        "/robots.txt": text("User-agent: *\nDisallow: /private"),
    }  # fmt: skip
    site = ToySite(host=HOST, answers=answers, silent=("/slow",))
    recipe = crawl(site, max_depth=2, max_page_bytes=20_000, timeout_seconds=2.0)
    summary = build(recipe, tmp_path)
    assert outcomes(tmp_path) == {
        "/": "fetched",
        "/a": "fetched",
        "/b": "redirect",
        "/target": "fetched",
        "/deep": "fetched",
        "/large": "too_large",
        "/packed": "too_large",
        "/slow": "timeout",
        "/loop": "redirect",
        "/away": "redirect",
        "http://elsewhere.test/": "offsite",
        "/private": "robots_denied",
        "/broken": "http_503",
        "/file": "fetched",
    }
    assert balanced(summary)
    assert summary.counts is not None
    assert summary.counts.errors == {"timeout": 1, "http_503": 1}
    assert "/private" not in site.paths
    site.never.set()


def test_the_crawl_delay_of_robots_txt_is_obeyed(tmp_path: Path):
    links = [f"/{number}" for number in range(4)]
    answers = {"/": page(*links), **{link: page() for link in links}}
    answers["/robots.txt"] = text("User-agent: *\nCrawl-delay: 0.5")
    site = ToySite(host=HOST, answers=answers)
    build(crawl(site), tmp_path)
    times = [when for path, when in site.asked if path != "/robots.txt"]
    assert len(times) == 5
    assert times[-1] - times[0] > 3 * 0.5  # a thread that begins late makes one of four short


def test_no_more_pages_are_asked_for_than_allowed(tmp_path: Path):
    answers = {"/": page(*(f"/{number}" for number in range(50)))}
    site = ToySite(host=HOST, answers=answers)
    summary = build(crawl(site, max_pages=7), tmp_path)
    assert summary.numbers["urls"] == 7
    assert len([path for path in site.paths if path != "/robots.txt"]) == 7


def test_a_crawl_that_was_stopped_asks_for_no_page_twice(tmp_path: Path):
    links = [f"/{number}" for number in range(12)]
    answers = {"/": page(*links), **{link: page(text=link) for link in links}}
    answers["/robots.txt"] = text("User-agent: *\nCrawl-delay: 0.15")
    site = ToySite(host=HOST, answers=answers)
    recipe = crawl(site)

    class Stopped(FakeContext):
        def progress(self, done: float, *_: Any, **__: Any) -> None:
            if done >= 4:
                raise StageError("killed", "stopped")

    with pytest.raises(StageError, match="stopped"):
        recipe.build(Stopped(recipe, tmp_path))
    before = len(site.paths)
    summary = build(recipe, tmp_path)
    assert summary.numbers["pages"] == 13
    twice = [path for path in set(site.paths) if site.paths.count(path) > 1]
    assert before >= 4
    assert len(twice) <= 1  # the one that was on its way


def test_sites_that_close_themselves_are_not_visited_and_said(tmp_path: Path):
    robots = {"closed.test": text("User-agent: *\nDisallow: /"), "failing.test": text("", 500)}
    sites = [
        ToySite(host=host, answers={"/": page(), "/robots.txt": answer})
        for host, answer in robots.items()
    ]
    seeds = tuple(f"http://{host}/" for host in robots)
    recipe = Crawl(name="toy", version="dev", sites=tuple(sites), seeds=seeds, max_pages=9)  # type: ignore[arg-type]
    with pytest.raises(StageError, match=r"robots_denied 2; robots\.txt closes every") as caught:
        build(recipe, tmp_path)
    assert caught.value.reason == "bad_input"
    assert {path for site in sites for path in site.paths} == {"/robots.txt"}


def test_a_seed_that_cannot_be_reached_is_said(tmp_path: Path):
    recipe = Crawl(name="toy", version="dev", seeds=("http://127.0.0.1:9/",), max_pages=3)
    with pytest.raises(StageError, match="fetched 0 of 1 pages: connection_refused 1"):
        build(recipe, tmp_path)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"seeds": ()}, "seeds="),
        ({"seeds": ("ftp://a.test/",)}, "ftp://a.test/"),
        ({"max_pages": 0}, "max_pages=0"),
        ({"delay_seconds": -1.0}, "delay_seconds=-1.0"),
    ],
)
def test_bad_fields_are_refused(fields: dict[str, Any], message: str):
    given = {"seeds": ("http://a.test/",), "max_pages": 1, **fields}
    with pytest.raises(ValueError, match=message):
        Crawl(name="toy", version="dev", **given)


def folder_of_html(folder: Path) -> None:
    (folder / "in").mkdir(parents=True)
    (folder / "index.html").write_bytes(b"<p>first")
    (folder / "in" / "a b.htm").write_bytes(b"<p>second")
    (folder / "style.css").write_bytes(b"p{}")


def test_a_folder_of_html_becomes_pages(tmp_path: Path):
    folder_of_html(tmp_path / "site")
    recipe = ImportHtml(
        name="toy", version="dev", folder=str(tmp_path / "site"), base_url="http://a.test/x/"
    )
    assert build(recipe, tmp_path).numbers["pages"] == 2
    path = tmp_path / "artifacts/crawl/toy@dev/warc/00000.warc.gz"
    found = {item.url: item.body for item in read_pages(str(path)) if isinstance(item, Page)}
    assert found == {
        "http://a.test/x/in/a%20b.htm": b"<p>second",
        "http://a.test/x/index.html": b"<p>first",
    }


def test_a_damaged_archive_is_taken_in_without_its_damage(tmp_path: Path):
    folder_of_html(tmp_path / "site")
    (tmp_path / "site" / "long.html").write_text("<p>" + " ".join(map(str, range(3000))))
    made = ImportHtml(
        name="made", version="dev", folder=str(tmp_path / "site"), base_url="http://a.test/"
    )
    build(made, tmp_path)
    whole = tmp_path / "artifacts/crawl/made@dev/warc/00000.warc.gz"
    cut = tmp_path / "cut[1].warc.gz"
    cut.write_bytes(whole.read_bytes()[:-40])
    recipe = ImportWarc(name="toy", version="dev", paths=(str(cut),), max_error_fraction=0.5)
    summary = build(recipe, tmp_path)
    assert balanced(summary)
    assert summary.numbers["pages"] == 2
    assert summary.counts is not None
    assert summary.counts.errors == {"truncated_file": 1}
    assert "byte" in summary.tables["errors"][0]["message"]
    copy = tmp_path / "artifacts/crawl/toy@dev/warc/00000.warc.gz"
    assert len([item for item in read_pages(str(copy)) if isinstance(item, Page)]) == 2
    strict = ImportWarc(name="strict", version="dev", paths=(str(cut),))
    with pytest.raises(StageError, match="max_error_fraction"):
        build(strict, tmp_path)


def test_archives_are_found_by_pattern_and_through_fsspec(tmp_path: Path):
    import fsspec

    folder_of_html(tmp_path / "site")
    made = ImportHtml(
        name="made", version="dev", folder=str(tmp_path / "site"), base_url="http://a.test/"
    )
    build(made, tmp_path)
    whole = tmp_path / "artifacts/crawl/made@dev/warc/00000.warc.gz"
    with fsspec.open("memory://toy-archives/a.warc", "wb") as file:
        file.write(gzip.decompress(whole.read_bytes()))  # type: ignore[union-attr]
    paths = (str(whole.parent / "*.warc.gz"), "memory://toy-archives/*.warc")
    summary = build(ImportWarc(name="toy", version="dev", paths=paths), tmp_path)
    assert summary.numbers["pages"] == 4


def test_a_pattern_that_matches_nothing_is_refused(tmp_path: Path):
    recipe = ImportWarc(name="toy", version="dev", paths=(str(tmp_path / "no*.warc"),))
    with pytest.raises(StageError, match="matches no file"):
        build(recipe, tmp_path)


def test_a_folder_is_crawled_as_a_site(tmp_path: Path):
    folder_of_html(tmp_path / "site")
    site = FolderSite(host="folder.test", folder=str(tmp_path / "site"))
    summary = build(crawl(site, seeds=("http://folder.test/in/",)), tmp_path)
    assert summary.numbers["pages"] == 2
