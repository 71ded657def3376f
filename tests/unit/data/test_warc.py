"""Archives that are damaged: good records come out, bad places are told with their offset."""

import gzip
import zlib
from pathlib import Path

import pytest

from marin_dagster.data.warc import Page, PageError, Skipped, decode_body, decode_html, read_pages


def record(number: int, body: bytes = b"", extra: str = "", head: str = "", slip: int = 0) -> bytes:
    """A response record of a page `number`; `slip` is added to its Content-Length."""
    body = body or f"<html><body><p>page {number} {'x' * 3000}</p></body></html>".encode()
    head = head or "HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\n"
    content = f"{head}{extra}\r\n".encode() + body
    lines = (
        "WARC/1.0\r\nWARC-Type: response\r\n"
        f"WARC-Target-URI: http://a.test/{number}\r\nWARC-Date: 2026-01-01T00:00:00Z\r\n"
        f"Content-Length: {len(content) + slip}\r\n\r\n"
    )
    return lines.encode() + content + b"\r\n\r\n"


def write(folder: Path, members: list[bytes], packed: bool = True) -> str:
    path = folder / ("a.warc.gz" if packed else "a.warc")
    path.write_bytes(b"".join(gzip.compress(m) if packed else m for m in members))
    return str(path)


def pages(path: str) -> list[Page]:
    return [item for item in read_pages(path) if isinstance(item, Page)]


def faults(path: str) -> list[tuple[str, int]]:
    return [(i.reason, i.offset) for i in read_pages(path) if isinstance(i, PageError)]


THIRTY = [record(number) for number in range(30)]


@pytest.mark.parametrize("packed", [True, False])
def test_all_records_of_a_good_file_come_out(tmp_path: Path, packed: bool):
    path = write(tmp_path, THIRTY, packed)
    assert [page.url for page in pages(path)] == [f"http://a.test/{i}" for i in range(30)]
    assert faults(path) == []
    assert not any(page.notes for page in pages(path))


def test_a_whole_file_as_one_gzip_member_comes_out(tmp_path: Path):
    assert len(pages(write(tmp_path, [b"".join(THIRTY)]))) == 30


@pytest.mark.parametrize("packed", [True, False])
def test_a_cut_file_is_told_and_its_whole_records_come_out(tmp_path: Path, packed: bool):
    path = Path(write(tmp_path, THIRTY, packed))
    member = len(gzip.compress(THIRTY[0])) if packed else len(THIRTY[0])
    path.write_bytes(path.read_bytes()[: -member // 2])
    assert len(pages(str(path))) == 29
    (reason, offset), *others = faults(str(path))
    assert reason == "truncated_file"
    assert offset == sum(len(gzip.compress(r) if packed else r) for r in THIRTY[:29])
    assert others == []


def test_a_corrupt_member_costs_only_itself(tmp_path: Path):
    members = [gzip.compress(one) for one in THIRTY]
    start = sum(map(len, members[:10]))
    path = tmp_path / "a.warc.gz"
    damaged = bytearray(b"".join(members))
    damaged[start + 40 : start + 60] = bytes(20)
    path.write_bytes(damaged)
    assert len(pages(str(path))) == 29
    assert faults(str(path)) == [("corrupt_record", start)]


def test_a_member_without_its_magic_costs_only_itself(tmp_path: Path):
    members = [gzip.compress(one) for one in THIRTY]
    start = sum(map(len, members[:10]))
    damaged = bytearray(b"".join(members))
    damaged[start : start + 3] = b"\0\1\2"
    path = tmp_path / "a.warc.gz"
    path.write_bytes(damaged)
    assert len(pages(str(path))) == 29
    assert faults(str(path)) == [("corrupt_record", start)]


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("slip", [500, -500])
def test_a_wrong_content_length_loses_no_record(tmp_path: Path, packed: bool, slip: int):
    members = [*THIRTY[:9], record(9, slip=slip), *THIRTY[10:]]
    found = pages(write(tmp_path, members, packed))
    assert len(found) == 30
    assert found[9].body == pages(write(tmp_path, THIRTY, packed))[9].body
    assert found[9].notes == ("wrong_length",)


def test_the_five_record_archive_of_the_field(tmp_path: Path):
    """Good; bad header; gzip body; says UTF-8 and is cp1252; cut."""
    packed = gzip.compress(b"<html><p>packed</p></html>")
    western = "<html><p>Caf\u00e9 \u201cna\u00efve\u201d".encode("cp1252") + b" plain words" * 90
    members = [
        gzip.compress(record(1)),
        gzip.compress(record(2).replace(b"Content-Length", b"Content-Lemgth", 1)),
        gzip.compress(record(3, packed, "Content-Encoding: gzip\r\n")),
        gzip.compress(record(4, western)),
        gzip.compress(record(5))[:-30],
    ]
    path = tmp_path / "a.warc.gz"
    path.write_bytes(b"".join(members))
    found = pages(str(path))
    assert [page.url[-1] for page in found] == ["1", "3", "4"]
    assert found[1].body == b"<html><p>packed</p></html>"
    assert "Caf\ufffd" not in decode_html(found[2].body, found[2].content_type)[0]
    assert faults(str(path)) == [
        ("bad_header", len(members[0])),
        ("truncated_file", sum(map(len, members[:4]))),
    ]


def test_responses_that_are_no_pages_are_skipped_with_a_reason(tmp_path: Path):
    members = [
        record(1, head="HTTP/1.1 404 Not Found\r\nContent-Type: text/html\r\n"),
        record(2, b"{}", head="HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"),
        record(3, b" ", head="HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n"),
        record(4, b"no answer", head="SPAM\r\n"),
        record(5, b"<!DOCTYPE html><p>untyped", head="HTTP/1.1 200 OK\r\n"),
        record(6).replace(b"WARC-Type: response", b"WARC-Type: request", 1),
    ]
    items = list(read_pages(write(tmp_path, members)))
    reasons = [i.reason for i in items if isinstance(i, (Skipped, PageError))]
    assert reasons == ["http_404", "not_html", "empty_body", "bad_http"]
    assert [i.url[-1] for i in items if isinstance(i, Page)] == ["5"]


def test_an_empty_file_is_told(tmp_path: Path):
    assert faults(write(tmp_path, [], packed=False)) == [("empty_file", 0)]


def test_a_page_that_quotes_an_archive_stays_one_page(tmp_path: Path):
    quote = b"<html>\r\n\r\nWARC/1.0\r\nWARC-Type: response\r\n\r\n</html>"
    for packed in (True, False):
        found = pages(write(tmp_path, [THIRTY[0], record(1, quote), THIRTY[2]], packed))
        assert [page.url[-1] for page in found] == ["0", "1", "2"]
        assert found[1].body == quote


TEXT = b"<html><p>" + b"some words " * 1000 + b"</p></html>"


def test_bodies_are_decoded():
    import brotli

    chunked = b"5\r\n<html\r\n6;x=1\r\n>12345\r\n0\r\n\r\n"
    assert decode_body(chunked, {"transfer-encoding": "chunked"}) == (b"<html>12345", ())
    for coding, body in (
        ("gzip", gzip.compress(TEXT)),
        ("deflate", zlib.compress(TEXT)),
        ("deflate", zlib.compress(TEXT)[2:-4]),
        ("br", brotli.compress(TEXT)),
        ("identity", TEXT),
        ("gzip", TEXT),
        ("br, gzip", gzip.compress(brotli.compress(TEXT))),
    ):
        assert decode_body(body, {"content-encoding": coding}) == (TEXT, ())


def test_the_good_part_of_a_damaged_body_is_kept():
    import brotli

    noise = bytes(range(256)) * 40
    for coding, whole in (("gzip", gzip.compress(noise * 9)), ("br", brotli.compress(noise * 9))):
        body, notes = decode_body(whole[: len(whole) - 4], {"content-encoding": coding})
        assert noise.startswith(body[:1000])
        assert len(body) > 0
        assert notes == (f"cut_{'brotli' if coding == 'br' else coding}",)
    plain = {"transfer-encoding": "chunked"}
    assert decode_body(b"<html>not chunked", plain) == (b"<html>not chunked", ("bad_chunks",))
    assert decode_body(b"FF\r\n<html>cut", plain) == (b"<html>cut", ("cut_chunks",))


RUSSIAN = "<p>Маленькая девочка и её собака пошли в лес, чтобы найти потерянный мяч. " * 9
JAPANESE = "<p>昔々あるところに、おじいさんとおばあさんが住んでいました。" * 9


@pytest.mark.parametrize(
    ("text", "encoding", "content_type"),
    [
        (RUSSIAN, "koi8-r", "text/html; charset=koi8-r"),
        (RUSSIAN, "cp1251", "text/html"),
        (JAPANESE, "shift_jis", "text/html; charset=Shift_JIS"),
        (JAPANESE, "euc-jp", "text/html"),
        (JAPANESE, "utf-8", "text/html"),
        (f'<meta charset="windows-1251">{RUSSIAN}', "cp1251", "text/html"),
        (RUSSIAN, "utf-16", "text/html"),
        (RUSSIAN, "utf-8", "text/html; charset=no-such-charset"),
    ],
)
def test_text_is_decoded_as_declared_or_as_it_looks(text: str, encoding: str, content_type: str):
    assert decode_html(text.encode(encoding), content_type)[0] == text


def test_one_bad_byte_does_not_turn_a_utf8_page_into_another_encoding():
    body = ("<p>naïve café " * 50).encode() + b"coo\xffking" + ("<p>déjà vu" * 50).encode()
    for content_type in ("text/html", "text/html; charset=utf-8"):
        text, encoding = decode_html(body, content_type)
        assert encoding == "utf-8"
        assert "naïve café" in text
        assert "coo\ufffdking" in text
