"""Turns seed addresses, archives or folders of HTML into pages (WARC files), one line per URL."""

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import IO, Any, ClassVar
from urllib.parse import SplitResult, quote, urljoin, urlsplit

from marin_dagster.data.files import expand_paths, local_copy
from marin_dagster.data.site import DATE, FolderSite, GeneratedSite, serve
from marin_dagster.data.warc import host_of
from marin_dagster.kinds import Pages
from marin_dagster.recipe import Context, Counts, StageError, Summary

WARC_BYTES = 32_000_000  # of a file: some minutes of extraction, which later stages share out
FAULTS = {
    *("timeout", "connection", "connection_refused", "unknown_host", "cut_answer"),
    *("corrupt_record", "truncated_file", "bad_header", "bad_http", "empty_file"),
}
NUM_EXAMPLES = 5


@dataclass(frozen=True, kw_only=True)
class Crawl(Pages):
    """Fetches pages breadth first from seeds, staying on their hosts, as robots.txt allows.

    `sites` are made-up hosts, served on loopback while the crawl runs. A page at depth 0 is a
    seed. An attempt after a killed one goes on from the answers that it had.
    """

    stage: ClassVar[str] = "crawl"

    seeds: tuple[str, ...]
    sites: tuple[GeneratedSite | FolderSite, ...] = ()
    max_pages: int  # URLs asked for, seeds included
    max_depth: int = 16  # links from a seed
    max_page_bytes: int = 10_000_000  # larger answers are refused, never cut
    delay_seconds: float = 0.0  # between requests to one host; a longer Crawl-delay is obeyed
    requests_per_host: int = 4  # at the same time
    timeout_seconds: float = 60.0
    user_agent: str = "marin-dagster"
    warc_bytes: int = WARC_BYTES  # a WARC file that has grown larger is followed by a new one

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.seeds:
            raise ValueError(f"seeds=() of {self.address} is empty; name at least one URL")
        for seed in self.seeds:
            parts = urlsplit(seed)
            if parts.scheme not in ("http", "https") or not parts.hostname or not _has_port(parts):
                raise ValueError(
                    f"seeds of {self.address} has {seed!r}, which is no http(s) URL; "
                    "write it as 'https://host/path'"
                )
        for name in ("max_pages", "max_page_bytes", "requests_per_host", "timeout_seconds"):
            _check_positive(self, name)
        _check_positive(self, "warc_bytes")
        for name in ("max_depth", "delay_seconds"):
            if getattr(self, name) < 0:
                value = getattr(self, name)
                raise ValueError(f"{name}={value} of {self.address} is negative; use 0 or more")

    def build(self, ctx: Context) -> Summary:
        lines_path = os.path.join(ctx.work, "lines.jsonl")
        raw_path = os.path.join(ctx.work, "raw.warc.gz")
        served = [site.host for site in self.sites]
        with serve(self.sites) if self.sites else nullcontext("") as proxy:
            job = {
                "seeds": list(self.seeds),
                "hosts": sorted({urlsplit(seed).hostname or "" for seed in self.seeds}),
                "served": served,
                "proxy": proxy,
                **{name: getattr(self, name) for name in _JOB_FIELDS},
                "cache": os.path.join(ctx.work, "answers"),
                "lines": lines_path,
                "raw": raw_path,
            }
            _run_spider(ctx, job, self.max_pages)
        with open(lines_path, encoding="utf-8") as file:
            lines = sorted((json.loads(line) for line in file), key=lambda line: line["url"])
        _write_sorted(raw_path, lines, ctx.out, self.warc_bytes)
        summary = _summary(self.address, ctx.out, lines, way_out=_crawl_way_out(lines))
        shutil.rmtree(os.path.join(ctx.work, "answers"), ignore_errors=True)
        os.remove(raw_path)
        return summary


_JOB_FIELDS = (
    "max_pages",
    "max_depth",
    "max_page_bytes",
    "delay_seconds",
    "requests_per_host",
    "timeout_seconds",
    "user_agent",
)


@dataclass(frozen=True, kw_only=True)
class ImportWarc(Pages):
    """Takes in existing WARC files, readable records only; damaged places are counted and told.

    `paths` are files or patterns, local or of any fsspec file system.
    """

    stage: ClassVar[str] = "crawl"

    paths: tuple[str, ...]
    max_error_fraction: float = 0.2  # of records; above, the import fails
    warc_bytes: int = WARC_BYTES  # a WARC file that has grown larger is followed by a new one

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_positive(self, "warc_bytes")

    def build(self, ctx: Context) -> Summary:
        lines: list[dict[str, Any]] = []
        files = expand_paths(self.paths, self.address)
        with _WarcFiles(ctx.out, self.warc_bytes) as target:
            for number, path in enumerate(files):
                with local_copy(path) as local:
                    lines += _import_file(path, local, target)
                ctx.progress(number + 1, len(files), "files")
        way_out = f"look at the files of paths={self.paths!r}"
        summary = _summary(self.address, ctx.out, lines, way_out=way_out)
        assert summary.counts is not None
        num_errors = sum(summary.counts.errors.values())
        if num_errors > self.max_error_fraction * summary.counts.read:
            examples = "; ".join(row["message"] for row in summary.tables["errors"])
            raise StageError(
                "bad_input",
                f"{self.address}: {num_errors} of {summary.counts.read} records cannot be read, "
                f"above max_error_fraction={self.max_error_fraction} ({examples}); get the "
                "files again, or raise the limit",
            )
        return summary


@dataclass(frozen=True, kw_only=True)
class ImportHtml(Pages):
    """Takes in a folder of HTML files as if they had been fetched from `base_url`."""

    stage: ClassVar[str] = "crawl"

    folder: str
    base_url: str
    warc_bytes: int = WARC_BYTES  # a WARC file that has grown larger is followed by a new one

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_positive(self, "warc_bytes")

    def build(self, ctx: Context) -> Summary:
        lines: list[dict[str, Any]] = []
        with _WarcFiles(ctx.out, self.warc_bytes) as target:
            for relative in _html_files(self.folder, self.address):
                with open(os.path.join(self.folder, relative), "rb") as file:
                    body = file.read()
                url = urljoin(self.base_url, quote(relative.replace(os.sep, "/")))
                target.write(_html_record(url, body))
                lines.append(_line(url, 200, "fetched", len(body)))
                ctx.progress(len(lines), unit="pages")
        way_out = f"put *.html files into folder={self.folder!r}"
        return _summary(self.address, ctx.out, lines, way_out=way_out)


# ---- the child process of a crawl


def _run_spider(ctx: Context, job: dict[str, Any], max_pages: int) -> None:
    job_path = os.path.join(ctx.work, "job.json")
    with open(job_path, "w", encoding="utf-8") as file:
        json.dump(job, file)
    log_path = os.path.join(ctx.work, "spider.log")
    with open(log_path, "wb") as log:
        child = subprocess.Popen(
            [sys.executable, "-m", "marin_dagster.data.crawl_spider", job_path],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
        )
        assert child.stdout is not None
        try:
            for said in child.stdout:
                state = json.loads(said)
                total = min(max_pages, max(state["asked"], state["done"]))
                waiting = max(0, total - state["done"])
                ctx.progress(state["done"], total, "pages", waiting=waiting)
            code = child.wait()
        finally:
            child.kill()
            child.wait()
            child.stdout.close()
    with open(log_path, encoding="utf-8", errors="replace") as file:
        tail = file.read()[-2000:]
    if tail.strip():
        ctx.log(tail)
    if code != 0:
        reason = "killed" if code < 0 else "error"
        raise StageError(reason, f"the crawler ended with code {code}; its last words: {tail}")


def _write_sorted(raw_path: str, lines: list[dict[str, Any]], out: str, warc_bytes: int) -> None:
    """Copies the records of the lines, in their order, from the raw file to `out`."""
    with open(raw_path, "rb") as raw, _WarcFiles(out, warc_bytes) as target:
        for line in lines:
            record = line.pop("record")
            if record:
                raw.seek(record[0])
                target.write(raw.read(record[1]))


def _crawl_way_out(lines: list[dict[str, Any]]) -> str:
    outcomes = {line["outcome"] for line in lines}
    if outcomes == {"robots_denied"}:
        return "robots.txt closes every seed; ask the owner, or take other seeds"
    messages = sorted({line["message"] for line in lines if line.get("message")})[:NUM_EXAMPLES]
    return "check that the seeds answer from this machine" + "".join(f" ({m})" for m in messages)


# ---- files


class _WarcFiles:
    """Writes `warc/00000.warc.gz`, `00001…` from whole gzip members."""

    def __init__(self, out: str, max_bytes: int):
        self._folder = os.path.join(out, "warc")
        self._max_bytes = max_bytes
        os.makedirs(self._folder, exist_ok=True)
        self._number = 0
        self._file = self._open()

    def write(self, members: bytes) -> None:
        if self._file.tell() > self._max_bytes:
            self._file.close()
            self._number += 1
            self._file = self._open()
        self._file.write(members)

    def _open(self) -> IO[bytes]:
        return open(os.path.join(self._folder, f"{self._number:05d}.warc.gz"), "wb")

    def __enter__(self) -> "_WarcFiles":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def _import_file(path: str, local: str, target: _WarcFiles) -> Iterator[dict[str, Any]]:
    from marin_dagster.data.warc import PageError, Skipped, page_of, read_records

    for record in read_records(local):
        if isinstance(record, PageError):
            yield _line(record.url or path, 0, record.reason, 0, f"{path}: {record.message}")
        elif record.type == "response":
            page = page_of(record)
            if isinstance(page, PageError):
                yield _line(page.url or path, 0, page.reason, 0, f"{path}: {page.message}")
                continue
            http = page.reason if isinstance(page, Skipped) else ""
            status = int(http[5:]) if http.startswith("http_") else 200
            target.write(_member(record.headers, record.content))
            outcome = "fetched" if status == 200 else http
            yield _line(record.url, status, outcome, len(record.content))


def _html_record(url: str, body: bytes) -> bytes:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n"
    content = head + f"Content-Length: {len(body)}\r\n\r\n".encode() + body
    headers = {
        "warc-type": "response",
        "warc-target-uri": url,
        "warc-date": _iso_date(DATE),
        "content-type": "application/http; msgtype=response",
        "warc-identified-payload-type": "text/html",
    }
    return _member(headers, content)


def _member(headers: dict[str, str], content: bytes) -> bytes:
    """One WARC record as a gzip member of its own; equal arguments give equal bytes."""
    import gzip
    import uuid

    name = f"{headers.get('warc-target-uri')} {headers.get('warc-date')}"
    kept = {"warc-record-id": f"<urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, name)}>", **headers}
    kept["content-length"] = str(len(content))
    lines = [f"{_HEADER_NAMES.get(key, key.title())}: {value}" for key, value in kept.items()]
    head = "WARC/1.0\r\n" + "\r\n".join(lines) + "\r\n\r\n"
    return gzip.compress(head.encode() + content + b"\r\n\r\n", mtime=0)


_HEADER_NAMES = {
    "warc-type": "WARC-Type",
    "warc-record-id": "WARC-Record-ID",
    "warc-target-uri": "WARC-Target-URI",
    "warc-date": "WARC-Date",
    "warc-identified-payload-type": "WARC-Identified-Payload-Type",
    "warc-ip-address": "WARC-IP-Address",
}


def _html_files(folder: str, address: str) -> list[str]:
    if not os.path.isdir(folder):
        raise StageError(
            "bad_input", f"{address}: folder={folder!r} is no folder; give one with HTML files"
        )
    return sorted(
        os.path.relpath(os.path.join(place, name), folder)
        for place, _, names in os.walk(folder)
        for name in names
        if name.lower().endswith((".html", ".htm", ".xhtml"))
    )


# ---- accounts


def _line(url: str, status: int, outcome: str, size: int, message: str = "") -> dict[str, Any]:
    return {"url": url, "status": status, "outcome": outcome, "bytes": size, "message": message}


def _summary(address: str, out: str, lines: list[dict[str, Any]], way_out: str) -> Summary:
    """Writes crawl.jsonl and returns the accounts; raises StageError when no page was fetched."""
    outcomes = Counter(line["outcome"] for line in lines)
    kept = outcomes.pop("fetched", 0)
    if not kept:
        reasons = ", ".join(f"{name} {count}" for name, count in outcomes.most_common())
        raise StageError(
            "bad_input",
            f"{address} fetched 0 of {len(lines)} pages: {reasons or 'nothing to read'}; {way_out}",
        )
    with open(os.path.join(out, "crawl.jsonl"), "w", encoding="utf-8") as file:
        for line in lines:
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
    errors = {name: n for name, n in outcomes.items() if _is_fault(name)}
    failed = [line for line in lines if _is_fault(line["outcome"])]
    counts = Counts(
        unit="urls",
        read=len(lines),
        kept=kept,
        dropped={name: n for name, n in outcomes.items() if not _is_fault(name)},
        errors=errors,
    )
    size = sum(line["bytes"] for line in lines if line["outcome"] == "fetched")
    hosts = {host_of(line["url"]) for line in lines}
    return Summary(
        numbers={"pages": kept, "urls": len(lines), "bytes": size, "hosts": len(hosts)},
        counts=counts,
        tables={
            "outcomes": [{"outcome": "fetched", "urls": kept}]
            + [{"outcome": name, "urls": n} for name, n in outcomes.most_common()],
            "errors": failed[:NUM_EXAMPLES],
        },
    )


def _is_fault(outcome: str) -> bool:
    return outcome in FAULTS or outcome.startswith("http_5")


def _iso_date(http_date: str) -> str:
    from email.utils import parsedate_to_datetime

    return parsedate_to_datetime(http_date).strftime("%Y-%m-%dT%H:%M:%SZ")


def _check_positive(recipe: Pages, name: str) -> None:
    if getattr(recipe, name) <= 0:
        value = getattr(recipe, name)
        raise ValueError(f"{name}={value} of {recipe.address} must be above 0; raise it")


def _has_port(parts: SplitResult) -> bool:
    """False when the port is out of range."""
    try:
        return parts.port is None or parts.port > 0
    except ValueError:
        return False
