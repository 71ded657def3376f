"""Turns web archives (WARC files) into pages, without losing good records to bad neighbours.

Reads `.warc` and `.warc.gz`. A broken gzip member, a broken header or a cut end costs the record
that it hits and is told with its byte offset; reading goes on with the next record. Bodies are
decoded here (chunked, gzip, deflate, br), and what could be decoded is kept.
"""

import contextlib
import mmap
import os
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from urllib.parse import urlsplit

GZIP = b"\x1f\x8b\x08"
MAX_MEMBER_BYTES = 2**31  # unpacked; a whole archive may be one gzip member
_NEXT_RECORD = re.compile(rb"(?:\r\n){1,2}(?=WARC/1\.\d\r\n)")
_HTML_TYPES = ("text/html", "application/xhtml+xml")
_LOOKS_HTML = re.compile(rb"<(?:!doctype\s+html|html|head|body|title|div|p|table)\b", re.I)
_CHARSET = re.compile(r"charset\s*=\s*[\"']?\s*([A-Za-z0-9_.:\-]+)", re.I)
_META_CHARSET = re.compile(rb"<meta[^>]{0,200}?charset\s*=\s*[\"']?\s*([A-Za-z0-9_.:\-]+)", re.I)
_MAX_BAD_UTF8 = 0.01  # share of replaced characters up to which a text counts as UTF-8


@dataclass(frozen=True, kw_only=True)
class Record:
    """One WARC record; `offset` is where it (or its gzip member) begins in the file."""

    offset: int
    headers: dict[str, str] = field(repr=False)  # names in lower case
    content: bytes = field(repr=False)
    notes: tuple[str, ...] = ()

    @property
    def type(self) -> str:
        return self.headers.get("warc-type", "").lower()

    @property
    def url(self) -> str:
        return self.headers.get("warc-target-uri", "").strip("<>")


@dataclass(frozen=True, kw_only=True)
class Page:
    """A fetched HTML page, its body decoded from transfer and content encodings."""

    offset: int
    url: str
    date: str
    content_type: str
    body: bytes = field(repr=False)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Skipped:
    """A readable response that is no page: not found, an image, an empty body."""

    offset: int
    url: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class PageError:
    """A place in the file that could not be read."""

    offset: int
    reason: str
    message: str
    url: str = ""


def host_of(url: str) -> str:
    """The host of a URL, "" when it has none that can be read."""
    try:
        return urlsplit(url).hostname or ""
    except ValueError:  # a bracket without its other half
        return ""


def read_pages(path: str) -> Iterator[Page | Skipped | PageError]:
    """Yields one item for every response record of a WARC file and for every damaged place."""
    for record in read_records(path):
        if isinstance(record, PageError):
            yield record
        elif record.type == "response":
            yield page_of(record)


def read_records(path: str) -> Iterator[Record | PageError]:
    """Yields the records of a WARC file of any type, and an error for every damaged place."""
    size = os.path.getsize(path)
    if size == 0:
        yield PageError(offset=0, reason="empty_file", message=f"{path} is empty")
        return
    with (
        open(path, "rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
    ):
        if data[:3] == GZIP:
            yield from _gzip_records(data)
        else:
            yield from _parse(data, base=None)


def _gzip_records(data: mmap.mmap) -> Iterator[Record | PageError]:
    offset = 0
    while offset < len(data):
        if data[offset : offset + 3] != GZIP:
            following = _next_member(data, offset + 1)
            if data[offset:following].strip(b"\0\r\n"):
                message = f"no gzip member begins at byte {offset}"
                yield PageError(offset=offset, reason="corrupt_record", message=message)
            offset = following
            continue
        content, end, fault = _unpack(data, offset)
        if fault:
            message = f"gzip member at byte {offset}: {fault[1]}"
            yield PageError(offset=offset, reason=fault[0], message=message)
            offset = _next_member(data, offset + 1)
        else:
            yield from _parse(content, base=offset)
            offset = end


def _unpack(data: mmap.mmap, offset: int) -> tuple[bytes, int, tuple[str, str] | None]:
    """Returns a gzip member's content, where the next begins, and (reason, message) of a fault."""
    inflate = zlib.decompressobj(31)
    parts: list[bytes] = []
    at, size = offset, 0
    try:
        while at < len(data) and not inflate.eof:
            block = data[at : at + 2**16]
            parts.append(inflate.decompress(block))
            at, size = at + len(block), size + len(parts[-1])
            if size > MAX_MEMBER_BYTES:
                return b"", at, ("too_large", f"above {MAX_MEMBER_BYTES} bytes when unpacked")
    except zlib.error as error:
        return b"", at, ("corrupt_record", str(error))
    if not inflate.eof:
        return b"", at, ("truncated_file", "the file ends within it")
    return b"".join(parts), at - len(inflate.unused_data), None


def _next_member(data: mmap.mmap, start: int) -> int:
    """Returns where the next gzip member that holds a WARC record begins, or the file's end."""
    while (at := data.find(GZIP, start)) >= 0:
        with contextlib.suppress(zlib.error):
            if zlib.decompressobj(31).decompress(data[at : at + 4096], 8).startswith(b"WARC/"):
                return at
        start = at + 1
    return len(data)


def _parse(content: bytes | mmap.mmap, base: int | None) -> Iterator[Record | PageError]:
    """Yields the records in unpacked bytes; offsets are `base` (gzip) or positions in `content`."""
    at, size = 0, len(content)
    while at < size:
        if content[at : at + 2] == b"\r\n":
            at += 2
            continue
        offset = at if base is None else base
        following = _NEXT_RECORD.search(content, at + 1)
        limit = following.start() if following else size
        start = content.find(b"\r\n\r\n", at, limit) + 4
        headers = _headers(content[at : start - 4]) if start >= 4 else {}
        length = headers.get("content-length", "")
        if content[at : at + 5] != b"WARC/" or not length.isdecimal():
            if content[at:limit].strip(b"\0\r\n"):
                message = f"no WARC header that can be read at byte {offset}"
                yield PageError(offset=offset, reason="bad_header", message=message)
            at = limit
            continue
        end, notes = start + int(length), ()
        if content[end : end + 4] != b"\r\n\r\n" or not _at_border(content, end + 4):
            # the length is wrong, or the body itself quotes an archive: take up to the next record
            if base is None and following is None and content[-4:] != b"\r\n\r\n":
                message = f"the file ends within the record at byte {offset}"
                url = headers.get("warc-target-uri", "")
                yield PageError(offset=offset, reason="truncated_file", message=message, url=url)
                return
            end, notes = limit, ("wrong_length",)
            if content[end - 4 : end] == b"\r\n\r\n":
                end -= 4
        yield Record(offset=offset, headers=headers, content=bytes(content[start:end]), notes=notes)
        at = end


def _at_border(content: bytes | mmap.mmap, at: int) -> bool:
    return at >= len(content) or content[at : at + 5] == b"WARC/"


def _headers(block: bytes) -> dict[str, str]:
    """Header lines after the first one; names in lower case, the first of equal names wins."""
    headers: dict[str, str] = {}
    for line in block.replace(b"\r\n", b"\n").split(b"\n")[1:]:
        name, colon, value = line.partition(b":")
        if colon:
            key = name.decode("latin-1").strip().lower()
            headers.setdefault(key, value.decode("utf-8", "replace").strip())
    return headers


def page_of(record: Record) -> Page | Skipped | PageError:
    head, blank, body = record.content.partition(b"\r\n\r\n")
    if not blank:
        head, blank, body = record.content.partition(b"\n\n")
    status = re.match(rb"HTTP/\d(?:\.\d)? +(\d{3})", head)
    if status is None:
        message = f"record at byte {record.offset} holds no HTTP response"
        return PageError(offset=record.offset, reason="bad_http", message=message, url=record.url)
    if status[1] != b"200":
        reason = f"http_{status[1].decode()}"
        return Skipped(offset=record.offset, url=record.url, reason=reason)
    headers = _headers(head)
    body, notes = decode_body(body, headers)
    content_type = headers.get("content-type", "")
    kind = content_type.split(";")[0].strip().lower()
    if kind not in _HTML_TYPES and (kind or not _LOOKS_HTML.search(body[:2048])):
        return Skipped(offset=record.offset, url=record.url, reason="not_html")
    if not body.strip():
        if notes:
            message = f"record at byte {record.offset}: body is lost ({', '.join(notes)})"
            return PageError(
                offset=record.offset, reason="bad_encoding", message=message, url=record.url
            )
        return Skipped(offset=record.offset, url=record.url, reason="empty_body")
    return Page(
        offset=record.offset,
        url=record.url,
        date=record.headers.get("warc-date", ""),
        content_type=content_type,
        body=body,
        notes=(*record.notes, *notes),
    )


# ---- bodies


def decode_body(body: bytes, headers: dict[str, str]) -> tuple[bytes, tuple[str, ...]]:
    """Undoes transfer and content encodings; returns the good prefix, and a note per fault."""
    notes: list[str] = []
    if "chunked" in headers.get("transfer-encoding", "").lower():
        body = _dechunk(body, notes)
    for coding in reversed(headers.get("content-encoding", "").lower().split(",")):
        coding = coding.strip().removeprefix("x-")
        if coding == "gzip":
            body = _inflate(body, 31, notes) if body[:2] == GZIP[:2] else body
        elif coding == "deflate":
            wrapped = body[:1] and body[0] & 15 == 8 and int.from_bytes(body[:2], "big") % 31 == 0
            body = _inflate(body, 15 if wrapped else -15, notes)
        elif coding == "br":
            body = _unbrotli(body, notes)
        elif coding not in ("", "identity", "none", "utf-8"):
            notes.append(f"unknown_encoding_{coding}")
    return body, tuple(notes)


def _dechunk(body: bytes, notes: list[str]) -> bytes:
    parts, at = [], 0
    while at < len(body):
        line_end = body.find(b"\r\n", at)
        size_text = body[at : line_end if line_end >= 0 else len(body)].split(b";")[0].strip()
        if not re.fullmatch(rb"[0-9A-Fa-f]{1,8}", size_text):
            notes.append("bad_chunks")
            # says chunked and is plain: many archives keep the header and store the body unpacked
            return b"".join(parts) if parts else body
        size = int(size_text, 16)
        if size == 0:
            return b"".join(parts)
        parts.append(body[line_end + 2 : line_end + 2 + size])
        at = line_end + 2 + size + 2
    notes.append("cut_chunks")
    return b"".join(parts)


def _inflate(body: bytes, wbits: int, notes: list[str]) -> bytes:
    inflate = zlib.decompressobj(wbits)
    parts: list[bytes] = []
    try:
        for at in range(0, len(body), 1024):
            parts.append(inflate.decompress(body[at : at + 1024]))
    except zlib.error:
        notes.append("bad_gzip")
    if not inflate.eof and not notes:
        notes.append("cut_gzip")
    return b"".join(parts)


def _unbrotli(body: bytes, notes: list[str]) -> bytes:
    import brotli

    decoder = brotli.Decompressor()
    parts: list[bytes] = []
    try:
        for at in range(0, len(body), 1024):
            parts.append(decoder.process(body[at : at + 1024]))
    except brotli.error:
        notes.append("bad_brotli")
    if not decoder.is_finished() and not notes:
        notes.append("cut_brotli")
    return b"".join(parts)


def decode_html(body: bytes, content_type: str) -> tuple[str, str]:
    """Returns the text of HTML bytes and its encoding.

    In order: a byte-order mark, the charset of the HTTP header, that of a meta tag, UTF-8 when
    hardly a character of it is bad, a guess.
    """
    for mark, name in _MARKS:
        if body.startswith(mark):
            return body[len(mark) :].decode(name, "replace"), name
    declared: list[str] = []
    if match := _CHARSET.search(content_type):
        declared.append(str(match[1]))
    if found := _META_CHARSET.search(body[:4096]):
        declared.append(found[1].decode("ascii"))
    for name in declared:
        with contextlib.suppress(UnicodeDecodeError, LookupError, ValueError):
            return body.decode(_WEB_NAMES.get(name.lower(), name)), name.lower()
    text = body.decode("utf-8", "replace")
    bad = text.count("\ufffd")
    beyond_ascii = sum(char > "\x7f" for char in text) if bad > 1 else 0
    if bad <= max(1, beyond_ascii // 4) and bad <= _MAX_BAD_UTF8 * len(text):
        return text, "utf-8"
    return _guess(body)


_MARKS = ((b"\xef\xbb\xbf", "utf-8"), (b"\xff\xfe", "utf-16-le"), (b"\xfe\xff", "utf-16-be"))
# what browsers take these names for
_WEB_NAMES = {
    "iso-8859-1": "cp1252",
    "latin1": "cp1252",
    "latin-1": "cp1252",
    "ascii": "cp1252",
    "us-ascii": "cp1252",
    "iso-8859-9": "cp1254",
    "shift_jis": "cp932",
    "gb2312": "gb18030",
    "gbk": "gb18030",
    "ks_c_5601-1987": "cp949",
    "euc-kr": "cp949",
}


def _guess(body: bytes) -> tuple[str, str]:
    from resiliparse.parse.encoding import detect_encoding

    name = str(detect_encoding(body) or "utf-8")
    try:
        return body.decode(name, "replace"), name
    except LookupError:
        return body.decode("utf-8", "replace"), "utf-8"
