"""Turns a seed, or a folder of files, into a website that a crawler can visit over loopback.

Two sites: `GeneratedSite` is made up (stories, lists, spam, copies, odd pages), `FolderSite` shows
a folder. `serve` answers for them as an HTTP proxy, so that addresses never hold a port.
"""

import contextlib
import gzip
import mimetypes
import os
import random
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Protocol
from urllib.parse import quote, unquote, urlsplit

from marin_dagster.data import site_pages as pages
from marin_dagster.data.stories import HELD_OUT, Story, story

DATE = "Thu, 01 Jan 2026 00:00:00 GMT"  # every answer says so: equal crawls give equal bytes
CHAPTER_PAGES = 20  # story pages that one list page links to
HTML = "text/html; charset=utf-8"

# one page of each kind per so many story pages
_EVERY = {"print": 10, "copy": 25, "offers": 20, "notes": 30, "de": 50, "fr": 60, "es": 70}
_ODD = ("latin1", "nul", "broken", "data", "deep", "cut")


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a site says to a request; `body` is not yet compressed."""

    status: int
    content_type: str
    body: bytes
    headers: tuple[tuple[str, str], ...] = field(default=())


class Site(Protocol):
    """A host that has an answer for every path."""

    @property
    def host(self) -> str: ...
    def answer(self, path: str) -> Answer: ...


@dataclass(frozen=True, kw_only=True)
class GeneratedSite:
    """A made-up site of `num_pages` story pages, and about a third as many pages of other kinds.

    It has list pages, spam, near and exact copies, short notes, German, French and Spanish pages,
    a page in Latin-1, one with NUL bytes, an error page, a redirect, a sitemap, and a robots.txt
    that closes /private/. `num_leaked` stories kept for evaluation (the first `HELD_OUT` ones of
    the same seed) are shown too, so that decontamination has something true to find.
    """

    host: str
    seed: int
    num_pages: int  # pages with stories
    stories_per_page: int = 4
    num_leaked: int = 0
    crawl_delay: float | None = None  # seconds, said in robots.txt

    def __post_init__(self) -> None:
        _check_host(self.host)
        if self.num_pages < 1 or self.stories_per_page < 1:
            raise ValueError(
                f"num_pages={self.num_pages} and stories_per_page={self.stories_per_page} of "
                f"{self.host} must be at least 1; give positive numbers"
            )
        if not 0 <= self.num_leaked <= self.num_pages:
            raise ValueError(
                f"num_leaked={self.num_leaked} of {self.host} is not within 0 and "
                f"num_pages={self.num_pages}; a page leaks at most one story"
            )

    def answer(self, path: str) -> Answer:
        """Returns the answer for a path; unknown ones get a 404 page."""
        parts = [part for part in path.split("?")[0].split("/") if part]
        rng = random.Random(f"{self.host}/{self.seed}/{path}")
        match parts:
            case []:
                return self._page(self._index(rng))
            case ["robots.txt"]:
                return Answer(status=200, content_type="text/plain", body=self._robots().encode())
            case ["sitemap.xml"]:
                return Answer(status=200, content_type="application/xml", body=self._sitemap())
            case ["about"]:
                about = "<p>We are a small site that tells small stories to small people.</p>"
                return self._page(pages.layout(self.host, "About", about, rng))
            case ["old-home"]:
                move = (("Location", f"http://{self.host}/"),)
                return Answer(status=301, content_type=HTML, body=b"moved", headers=move)
            case ["private", *_]:
                return self._page(pages.layout(self.host, "Private", "<p>A diary.</p>", rng))
            case ["odd", name] if name in _ODD:
                return self._odd(name, rng)
            case [kind, number] if number.isdecimal() and str(int(number)) == number:
                return self._numbered(kind, int(number), rng)
        return self._missing(rng)

    def stories(self, number: int) -> list[Story]:
        """Returns the stories of a story page, a leaked one last."""
        first = number * self.stories_per_page
        told = [story(self.seed, first + i) for i in range(self.stories_per_page)]
        stride = self.num_pages // self.num_leaked if self.num_leaked else 0
        if stride and number % stride == 0 and number // stride < self.num_leaked:
            told.append(story(self.seed, HELD_OUT + number // stride))
        return told

    def _numbered(self, kind: str, number: int, rng: random.Random) -> Answer:
        if kind == "chapters" and number * CHAPTER_PAGES < self.num_pages:
            return self._page(self._chapter(number, rng))
        if number >= self.num_pages:
            return self._missing(rng)
        if kind == "stories":
            return self._page(pages.story_page(self.host, number, self.stories(number), rng))
        if kind not in _EVERY or number % _EVERY[kind]:
            return self._missing(rng)
        if kind == "copy":
            return self.answer(f"/stories/{number}")
        if kind == "print":
            return self._page(pages.print_page(self.stories(number), rng))
        if kind == "offers":
            return self._page(pages.spam_page(self.host, rng))
        if kind == "notes":
            return self._page(pages.note_page(self.host, rng))
        return self._page(pages.foreign_page(self.host, kind, rng))

    def _index(self, rng: random.Random) -> str:
        links = [(f"/{kind}/0", kind) for kind in ("chapters", "stories", *_EVERY)]
        links += [(f"/odd/{name}", name) for name in _ODD]
        links += [("/old-home", "Old home"), ("/gone", "Gone"), ("/private/diary", "Diary")]
        return pages.list_page(self.host, "Welcome", links, rng)

    def _chapter(self, number: int, rng: random.Random) -> str:
        first = number * CHAPTER_PAGES
        links = []
        for page in range(first, min(first + CHAPTER_PAGES, self.num_pages)):
            links.append((f"/stories/{page}", story(self.seed, page * self.stories_per_page).title))
            links += [
                (f"/{kind}/{page}", f"{kind} {page}")
                for kind, every in _EVERY.items()
                if page % every == 0
            ]
        if first + CHAPTER_PAGES < self.num_pages:
            links.append((f"/chapters/{number + 1}", "Next chapter"))
        return pages.list_page(self.host, f"Chapter {number + 1}", links, rng)

    def _robots(self) -> str:
        delay = "" if self.crawl_delay is None else f"Crawl-delay: {self.crawl_delay}\n"
        sitemap = f"Sitemap: http://{self.host}/sitemap.xml\n"
        return f"User-agent: *\nDisallow: /private/\n{delay}\n{sitemap}"

    def _sitemap(self) -> bytes:
        places = (f"http://{self.host}/stories/{page}" for page in range(self.num_pages))
        urls = "".join(f"<url><loc>{place}</loc></url>" for place in places)
        space = "http://www.sitemaps.org/schemas/sitemap/0.9"
        return f'<?xml version="1.0"?><urlset xmlns="{space}">{urls}</urlset>'.encode()

    def _odd(self, name: str, rng: random.Random) -> Answer:
        text = pages.foreign_text("de", rng)
        if name == "latin1":
            page = f"<html><head><title>Märchen</title></head><body><p>{text}</p></body></html>"
            kind = "text/html; charset=iso-8859-1"
            return Answer(status=200, content_type=kind, body=page.encode("latin-1"))
        if name == "nul":
            page = pages.story_page(self.host, 0, self.stories(0), rng).replace(" the ", " the\0 ")
            return self._page(page)
        if name == "broken":
            return Answer(status=500, content_type=HTML, body=b"<h1>Something went wrong</h1>")
        if name == "data":
            return Answer(status=200, content_type="application/json", body=b'{"stories": []}')
        if name == "deep":
            depth = 1500
            return self._page(f"<html><body>{'<div>' * depth}deep{'</div>' * depth}</body></html>")
        told = "".join(f"<p>{part}" for part in self.stories(1 % self.num_pages)[0].paragraphs)
        return self._page(f"<p>{told}<div><b>and then")

    def _missing(self, rng: random.Random) -> Answer:
        page = pages.layout(self.host, "Not found", "<p>There is no such page.</p>", rng)
        return Answer(status=404, content_type=HTML, body=page.encode())

    def _page(self, page: str) -> Answer:
        return Answer(status=200, content_type=HTML, body=page.encode())


@dataclass(frozen=True, kw_only=True)
class FolderSite:
    """A folder of files as a site; a folder without index.html is shown as a list of its files."""

    host: str
    folder: str

    def __post_init__(self) -> None:
        _check_host(self.host)

    def answer(self, path: str) -> Answer:
        """Returns the file at a path, never one outside of the folder."""
        root = os.path.realpath(self.folder)
        relative = unquote(path.split("?")[0]).lstrip("/")
        if "\0" in relative:
            return Answer(status=400, content_type="text/plain", body=b"bad path")
        place = os.path.realpath(os.path.join(root, relative))
        if os.path.commonpath((root, place)) != root:
            return Answer(status=404, content_type="text/plain", body=b"not found")
        if os.path.isdir(place):
            index = os.path.join(place, "index.html")
            if not os.path.exists(index):
                return Answer(status=200, content_type=HTML, body=_listing(root, place))
            place = index
        if not os.path.isfile(place):
            return Answer(status=404, content_type="text/plain", body=b"not found")
        kind = mimetypes.guess_type(place)[0] or "application/octet-stream"
        with open(place, "rb") as file:
            return Answer(status=200, content_type=kind, body=file.read())


@contextlib.contextmanager
def serve(sites: Sequence[Site]) -> Iterator[str]:
    """Serves sites on a free loopback port while the block runs; yields the proxy's address.

    A client that uses the address as its HTTP proxy reaches the sites under their own host names.
    """
    by_host = {site.host: site for site in sites}

    class Handler(_Handler):
        sites = by_host

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    sites: dict[str, Site]

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        site = self.sites.get(url.hostname or (self.headers.get("Host") or "").split(":")[0])
        if site is None:
            answer = Answer(status=502, content_type="text/plain", body=b"unknown host")
        else:
            answer = site.answer(url.path + (f"?{url.query}" if url.query else ""))
        try:
            self._send(answer)
        except ConnectionError:
            self.close_connection = True  # the client went away

    def _send(self, answer: Answer) -> None:
        body = answer.body
        packed = "gzip" in (self.headers.get("Accept-Encoding") or "") and len(body) > 1000
        self.send_response_only(answer.status)
        self.send_header("Date", DATE)
        self.send_header("Content-Type", answer.content_type)
        for name, value in answer.headers:
            self.send_header(name, value)
        if packed:
            body = gzip.compress(body, compresslevel=3, mtime=0)
            self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing: a crawl asks for thousands of pages."""


def _listing(root: str, place: str) -> bytes:
    names = sorted(os.listdir(place))
    base = os.path.relpath(place, root)
    prefix = "" if base == "." else base.replace(os.sep, "/") + "/"
    links = (f'<li><a href="/{quote(prefix + name)}">{quote(name)}</a></li>' for name in names)
    return f"<html><body><ul>{''.join(links)}</ul></body></html>".encode()


def _check_host(host: str) -> None:
    url = urlsplit(f"http://{host}/")
    if url.hostname != host:
        raise ValueError(
            f"host={host!r} is not a plain lower-case host name without port or path; "
            "write one such as 'stories.test'"
        )
