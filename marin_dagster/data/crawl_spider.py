"""Turns a crawl job (a JSON file) into raw WARC records and one line per URL: the child process.

`python -m marin_dagster.data.crawl_spider job.json`. Twisted's reactor cannot start twice in a
process, so each crawl has its own. Answers are kept in the job's cache folder: an attempt after a
killed one replays them and asks the hosts only for what is missing. Each line on stdout is
`{"done": …, "asked": …}`.
"""

import importlib
import io
import json
import os
import pickle
import sys
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

import scrapy
from scrapy import signals
from scrapy.crawler import Crawler, CrawlerProcess
from scrapy.exceptions import IgnoreRequest
from scrapy.http import Headers, HtmlResponse, Request, Response
from scrapy.linkextractors import LinkExtractor
from scrapy.responsetypes import responsetypes
from scrapy.utils.response import response_status_message
from twisted.python.failure import Failure
from w3lib.url import canonicalize_url
from warcio.statusandheaders import StatusAndHeaders
from warcio.warcwriter import WARCWriter

from marin_dagster.data.site import DATE
from marin_dagster.process import die_with_parent

OFFSITE, DENIED, REDIRECTS = "offsite", "Forbidden by robots.txt", "max redirections reached"
RETRIED = (500, 502, 503, 504, 522, 524, 408, 429)
HTML_TYPES = ("text/html", "application/xhtml+xml")
_OUTCOMES = {
    "DownloadCancelledError": "too_large",
    "DownloadTimeoutError": "timeout",
    "CannotResolveHostError": "unknown_host",
    "DownloadConnectionRefusedError": "connection_refused",
    "ResponseDataLossError": "cut_answer",
}


def main(job_path: str) -> None:
    """Runs the job to its end."""
    with open(job_path, encoding="utf-8") as file:
        job = json.load(file)
    process = CrawlerProcess(_settings(job))
    process.crawl(PageSpider, job=job)
    process.start()


def _settings(job: dict[str, Any]) -> dict[str, Any]:
    here = "marin_dagster.data.crawl_spider"
    return {
        "USER_AGENT": job["user_agent"],
        "ROBOTSTXT_OBEY": True,
        "CONCURRENT_REQUESTS": 16,
        "CONCURRENT_REQUESTS_PER_DOMAIN": job["requests_per_host"],
        "DOWNLOAD_DELAY": job["delay_seconds"],
        "DOWNLOAD_DELAY_JITTER": 0.0,
        "DOWNLOAD_TIMEOUT": job["timeout_seconds"],
        "DOWNLOAD_MAXSIZE": job["max_page_bytes"],
        "DOWNLOAD_WARNSIZE": 0,
        "DEFAULT_REQUEST_HEADERS": {
            "Accept": "text/html,application/xhtml+xml,*/*;q=0.5",
            "Accept-Encoding": "gzip",  # brotli bodies are more than many WARC readers can take
        },
        "DOWNLOADER_MIDDLEWARES": {
            "scrapy.downloadermiddlewares.offsite.OffsiteMiddleware": None,
            "scrapy.downloadermiddlewares.redirect.MetaRefreshMiddleware": None,
            f"{here}.RobotsFaults": 540,
            f"{here}.Scope": 740,
            f"{here}.WarcRecorder": 890,
        },
        "EXTENSIONS": {f"{here}.CrawlDelay": 500},
        "HTTPCACHE_ENABLED": True,
        "HTTPCACHE_POLICY": "scrapy.extensions.httpcache.DummyPolicy",
        "HTTPCACHE_STORAGE": f"{here}.AnswerCache",
        "HTTPCACHE_DIR": job["cache"],
        "HTTPCACHE_IGNORE_HTTP_CODES": RETRIED,
        "RETRY_TIMES": 2,
        "COOKIES_ENABLED": False,
        "REFERER_ENABLED": False,  # it would tell which of two links was seen first
        "TELNETCONSOLE_ENABLED": False,
        "HTTPERROR_ALLOW_ALL": True,
        "DEPTH_PRIORITY": 1,  # breadth first
        "SCHEDULER_DISK_QUEUE": "scrapy.squeues.PickleFifoDiskQueue",
        "SCHEDULER_MEMORY_QUEUE": "scrapy.squeues.FifoMemoryQueue",
        "LOG_LEVEL": "ERROR",
        "LOGSTATS_INTERVAL": 0,
    }


class PageSpider(scrapy.Spider):
    """Asks for the seeds and for what they link to, each URL once, up to the job's limits."""

    name = "pages"

    def __init__(self, job: dict[str, Any], **kwargs: Any):
        super().__init__(**kwargs)
        self.job = job
        self.done = 0
        self._seen: set[str] = set()
        self._told: set[str] = set()
        self._links = LinkExtractor(unique=True)  # leaves out names of images, archives and such
        self._lines = open(job["lines"], "w", encoding="utf-8")  # noqa: SIM115
        self._reported = 0.0

    async def start(self) -> AsyncIterator[Request]:
        for url in self.job["seeds"]:
            for request in self._ask(url):
                yield request

    def parse(self, response: Response) -> Iterator[Request]:
        """Notes what became of a page and asks for its links."""
        outcome = "fetched" if response.status == 200 else f"http_{response.status}"
        record = response.meta.pop("warc_record", None)
        self.tell(response.url, outcome, response.status, len(response.body), record)
        if response.status != 200 or response.meta.get("depth", 0) >= self.job["max_depth"]:
            return
        if isinstance(response, HtmlResponse):
            for link in self._links.extract_links(response):
                yield from self._ask(link.url)

    def failed(self, failure: Failure) -> None:
        """Notes a request that brought no answer."""
        request: Request = failure.request  # type: ignore[attr-defined]
        if failure.check(IgnoreRequest):
            reason = str(failure.value)
            known = {OFFSITE: "offsite", DENIED: "robots_denied", REDIRECTS: "redirect_loop"}
            unpacked = "too_large" if "DOWNLOAD_MAXSIZE" in reason else "ignored"
            self.tell(request.url, known.get(reason, unpacked), message=reason)
        else:
            name = failure.type.__name__ if failure.type else ""
            self.tell(request.url, _OUTCOMES.get(name, "connection"), message=str(failure.value))

    def tell(
        self,
        url: str,
        outcome: str,
        status: int = 0,
        size: int = 0,
        record: tuple[int, int] | None = None,
        message: str = "",
    ) -> None:
        """Writes the line of a URL; the first line of a URL stands."""
        if url in self._told:
            return
        self._told.add(url)
        line = {"url": url, "status": status, "outcome": outcome, "bytes": size}
        extra = {"record": record, "message": message[:300]}
        self._lines.write(json.dumps({**line, **extra}) + "\n")
        self._lines.flush()
        self.done += 1
        if time.monotonic() - self._reported > 0.5:
            self._reported = time.monotonic()
            print(json.dumps({"done": self.done, "asked": len(self._seen)}), flush=True)

    def _ask(self, url: str) -> Iterator[Request]:
        url = url.split("#")[0]
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or parts.hostname not in self.job["hosts"]:
            return
        key = canonicalize_url(url)
        if key in self._seen or len(self._seen) >= self.job["max_pages"]:
            return
        self._seen.add(key)
        yield Request(url, callback=self.parse, errback=self.failed)


class Scope:
    """Keeps redirects within the job's hosts and sends made-up hosts to their proxy."""

    def __init__(self, job: dict[str, Any]):
        self.job = job

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> "Scope":
        return cls(_job(crawler))

    def process_request(self, request: Request) -> None:
        host = urlsplit(request.url).hostname
        if host not in self.job["hosts"]:
            raise IgnoreRequest(OFFSITE)
        if host in self.job["served"]:
            request.meta["proxy"] = self.job["proxy"]
        elif request.meta.get("proxy") == self.job["proxy"]:
            request.meta.pop("proxy", None)


class RobotsFaults:
    """Reads a failing robots.txt as RFC 9309 says: a server error closes the site, 4xx opens it."""

    def process_response(self, request: Request, response: Response) -> Response:
        if not _is_robots(request) or response.status < 400:
            return response
        body = b"User-agent: *\nDisallow: /\n" if response.status >= 500 else b""
        return response.replace(status=200, body=body)


class CrawlDelay:
    """Obeys the Crawl-delay of robots.txt: one request at a time, so many seconds apart."""

    def __init__(self, crawler: Crawler):
        self.crawler = crawler
        crawler.signals.connect(self.robots_parsed, signal=signals.robots_parsed)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> "CrawlDelay":
        return cls(crawler)

    def robots_parsed(self, robotparser: Any, request: Request) -> None:
        seconds = robotparser.crawl_delay(_job(self.crawler)["user_agent"])
        assert self.crawler.engine is not None
        downloader = self.crawler.engine.downloader
        if seconds is None or seconds <= self.crawler.settings.getfloat("DOWNLOAD_DELAY"):
            return
        key = downloader.get_slot_key(request)
        # for the host's slot as it is, and for its later ones: idle slots are thrown away
        downloader.per_slot_settings[key] = {"delay": seconds, "concurrency": 1}
        if slot := downloader.slots.get(key):
            slot.delay, slot.concurrency = seconds, 1


class WarcRecorder:
    """Writes each answer, as it came, and its request to the job's raw WARC file."""

    def __init__(self, crawler: Crawler):
        self.crawler = crawler
        self.job = _job(crawler)
        self._file = open(self.job["raw"], "wb")  # noqa: SIM115
        self._writer = WARCWriter(self._file, gzip=True)
        crawler.signals.connect(self._close, signal=signals.spider_closed)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> "WarcRecorder":
        return cls(crawler)

    def _close(self) -> None:
        self._file.close()

    def process_response(self, request: Request, response: Response) -> Response:
        if _is_robots(request):
            return response
        begin = self._file.tell()
        date = self._date(request, response)
        headers = {"WARC-Date": date, "WARC-Record-ID": _record_id("response", request.url, date)}
        kind = (response.headers.get("Content-Type") or b"").decode("latin-1").split(";")[0]
        if kind.strip():
            headers["WARC-Identified-Payload-Type"] = kind.strip().lower()
        self._write(request.url, "response", _answer_head(response), headers, response.body)
        asked = {
            "WARC-Date": date,
            "WARC-Record-ID": _record_id("request", request.url, date),
            "WARC-Concurrent-To": headers["WARC-Record-ID"],
        }
        self._write(request.url, "request", _request_head(request), asked, b"")
        self._file.flush()
        record = (begin, self._file.tell() - begin)
        if response.status in (301, 302, 303, 307, 308) and "Location" in response.headers:
            spider = self.crawler.spider
            assert isinstance(spider, PageSpider)
            spider.tell(request.url, "redirect", response.status, len(response.body), record)
        elif response.status in RETRIED and request.meta.get("retry_times", 0) < 2:
            self._file.seek(begin)  # will be asked for again
            self._file.truncate()
        else:
            request.meta["warc_record"] = record
        return response

    def _write(
        self, url: str, kind: str, head: StatusAndHeaders, headers: dict[str, str], body: bytes
    ) -> None:
        record = self._writer.create_warc_record(
            url,
            kind,
            payload=io.BytesIO(body),
            length=len(body),
            http_headers=head,
            warc_headers_dict=headers,
        )
        self._writer.write_record(record)

    def _date(self, request: Request, response: Response) -> str:
        seconds = request.meta.pop("cache_timestamp", None) or time.time()
        if urlsplit(request.url).hostname in self.job["served"]:
            # a made-up site has a fixed date, so that equal crawls give equal bytes
            seconds = parsedate_to_datetime(DATE).timestamp()
        return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class AnswerCache:
    """Keeps answers as files that appear complete or not at all (a crawl may be killed)."""

    def __init__(self, settings: Any):
        self._folder = settings["HTTPCACHE_DIR"]

    def open_spider(self, spider: PageSpider) -> None:
        os.makedirs(self._folder, exist_ok=True)
        assert spider.crawler.request_fingerprinter is not None
        self._fingerprint = spider.crawler.request_fingerprinter.fingerprint

    def close_spider(self, spider: PageSpider) -> None: ...

    def retrieve_response(self, spider: PageSpider, request: Request) -> Response | None:
        try:
            with open(self._path(request), "rb") as file:
                kept = pickle.load(file)
        except FileNotFoundError:
            return None
        request.meta["cache_timestamp"] = kept.pop("seconds")
        kind = responsetypes.from_args(
            headers=Headers(kept["headers"]), url=kept["url"], body=kept["body"]
        )
        return kind(**kept)

    def store_response(self, spider: PageSpider, request: Request, response: Response) -> None:
        seconds = request.meta["cache_timestamp"] = time.time()
        kept = {
            "url": response.url,
            "status": response.status,
            "headers": {name: response.headers.getlist(name) for name in response.headers},
            "body": response.body,
            "seconds": seconds,
        }
        path = self._path(request)
        with open(f"{path}.part", "wb") as file:
            pickle.dump(kept, file)
        os.replace(f"{path}.part", path)

    def _path(self, request: Request) -> str:
        return os.path.join(self._folder, self._fingerprint(request).hex())


def _job(crawler: Crawler) -> dict[str, Any]:
    assert isinstance(crawler.spider, PageSpider)
    return crawler.spider.job


def _is_robots(request: Request) -> bool:
    """Whether this is the crawler's own request for a host's robots.txt."""
    return request.meta.get("dont_obey_robotstxt") is True


def _record_id(kind: str, url: str, date: str) -> str:
    return f"<urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, f'{kind} {url} {date}')}>"


def _answer_head(response: Response) -> StatusAndHeaders:
    headers = [
        (name.decode("latin-1"), value.decode("latin-1"))
        for name in response.headers
        for value in response.headers.getlist(name)
        if name.lower() not in (b"transfer-encoding", b"content-length")
    ]
    headers.append(("Content-Length", str(len(response.body))))
    return StatusAndHeaders(response_status_message(response.status), headers, "HTTP/1.1")


def _request_head(request: Request) -> StatusAndHeaders:
    parts = urlsplit(request.url)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    headers = [("Host", parts.netloc)]
    headers += [
        (name.decode("latin-1"), b", ".join(request.headers.getlist(name)).decode("latin-1"))
        for name in request.headers
        if name.lower() not in (b"host", b"proxy-authorization")
    ]
    return StatusAndHeaders(f"GET {target} HTTP/1.1", headers, is_http_request=True)


if __name__ == "__main__":
    die_with_parent()
    # Scrapy imports this module by name; the spider must be of that copy, not of __main__
    importlib.import_module("marin_dagster.data.crawl_spider").main(sys.argv[1])
