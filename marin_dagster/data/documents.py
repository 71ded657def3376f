"""Turns documents and conversations into shards of Dolma rows (`.jsonl.zst`), and back."""

import json
import os
import re
from collections.abc import Callable, Container, Iterator, Mapping
from typing import Any, Literal, Self, TypedDict, TypeVar, cast

from marin_dagster.recipe import StageError

SUFFIX = ".jsonl.zst"
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f]")
_COMPRESSION_LEVEL = 3

Row = TypeVar("Row")


class Document(TypedDict):
    """One text with where it came from; `created` and `added` are ISO dates or empty."""

    id: str
    text: str
    source: str
    created: str
    added: str
    metadata: dict[str, Any]


class Message(TypedDict):
    """One turn of a conversation."""

    role: Literal["system", "user", "assistant"]
    content: str


class Conversation(TypedDict):
    """Turns of one conversation with where it came from."""

    id: str
    messages: list[Message]
    source: str
    metadata: dict[str, Any]


def clean_text(text: str) -> str:
    """Text that every later stage can encode: no lone surrogates, no controls but tab, newline."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    if not text.isascii():
        text = text.encode("utf-8", "replace").decode("utf-8")
    return _CONTROLS.sub("", text)


def document_id(text: str) -> str:
    """32 hexadecimal digits: the 128-bit xxh3 of the text."""
    import xxhash

    return xxhash.xxh3_128_hexdigest(text.encode("utf-8", "replace"))


def new_document(
    text: str,
    *,
    source: str,
    created: str = "",
    added: str = "",
    metadata: Mapping[str, Any] | None = None,
) -> Document:
    """A document with cleaned text and an id derived from it."""
    text = clean_text(text)
    return Document(
        id=document_id(text),
        text=text,
        source=source,
        created=created,
        added=added,
        metadata=dict(metadata or {}),
    )


def shard_paths(folder: str, kind: str = "documents") -> list[str]:
    """Paths of an artifact's shards in name order; raises StageError when there is none."""
    inside = os.path.join(folder, kind)
    names = sorted(os.listdir(inside)) if os.path.isdir(inside) else []
    paths = [
        os.path.join(inside, name) for name in names if name.endswith(SUFFIX) and name[0] != "."
    ]
    if not paths:
        message = (
            f"{inside} holds no *{SUFFIX} shard; rebuild the artifact that should have written it"
        )
        raise StageError("bad_input", message)
    return paths


def read_lines(path: str) -> Iterator[bytes]:
    """Lines of one compressed shard; raises StageError when it is cut or corrupt."""
    import zstandard

    stream = zstandard.ZstdDecompressor().decompressobj()
    rest = b""
    try:
        with open(path, "rb") as file:
            while chunk := file.read(1 << 18):
                if stream.eof:
                    stream = zstandard.ZstdDecompressor().decompressobj()
                *lines, rest = (rest + stream.decompress(chunk)).split(b"\n")
                yield from lines
    except zstandard.ZstdError as error:
        message = f"{path} is not a readable zstd file ({error}); rebuild the artifact"
        raise StageError("bad_input", message) from error
    if not stream.eof or stream.unused_data:
        raise StageError("bad_input", f"{path} is cut or has extra bytes; rebuild the artifact")
    if rest:
        yield rest


def parse_document(line: bytes) -> Document:
    """A document from one JSON line, absent fields empty. Raises ValueError on a bad row."""
    row = json.loads(line)
    if (
        not isinstance(row, dict)
        or not isinstance(row.get("text"), str)
        or not isinstance(row.get("id"), str)
    ):
        raise ValueError("row is not an object with string fields id and text")
    return Document(
        id=row["id"],
        text=row["text"],
        source=row.get("source") or "",
        created=row.get("created") or "",
        added=row.get("added") or "",
        metadata=row.get("metadata") or {},
    )


def parse_conversation(line: bytes) -> Conversation:
    """A conversation from one JSON line. Raises ValueError on a bad row."""
    row = json.loads(line)
    messages = row.get("messages") if isinstance(row, dict) else None
    if not messages or not all(
        isinstance(m, dict) and isinstance(m.get("role"), str) and isinstance(m.get("content"), str)
        for m in messages
    ):
        raise ValueError("row is not an object with messages of string fields role and content")
    return Conversation(
        id=row.get("id") or document_id(json.dumps(messages, sort_keys=True)),
        messages=messages,
        source=row.get("source") or "",
        metadata=row.get("metadata") or {},
    )


def read_shard(path: str) -> Iterator[Document]:
    """Documents of one shard; one bad line raises StageError naming the file and the line."""
    return _read_rows(path, parse_document)


def scan_shard(
    path: str, lines: Container[int] | None = None
) -> Iterator[tuple[int, Document | ValueError]]:
    """Line number and document of each line, with cleaned strings; or what is wrong with it.

    `lines`: numbers of the only lines to look at.
    """
    return scan_rows(path, parse_document, lines)


def scan_rows(
    path: str, parse: Callable[[bytes], Row], lines: Container[int] | None = None
) -> Iterator[tuple[int, Row | ValueError]]:
    """Like `scan_shard`, of rows that `parse` reads."""
    for number, line in enumerate(read_lines(path), start=1):
        if lines is not None and number not in lines:
            continue
        try:
            row = parse(line)
        except ValueError as error:
            yield number, error
            continue
        escaped = b"\\u" in line  # only an escape can bring a NUL or a lone surrogate
        yield number, cast(Row, _clean_strings(row)) if escaped else row


def read_documents(folder: str) -> Iterator[Document]:
    """Documents of all shards of an artifact, in name order."""
    for path in shard_paths(folder):
        yield from read_shard(path)


def read_conversations(folder: str) -> Iterator[Conversation]:
    """Conversations of all shards of an artifact, in name order."""
    for path in shard_paths(folder, "conversations"):
        yield from _read_rows(path, parse_conversation)


class DocumentWriter:
    """Writes `documents/00000.jsonl.zst`, `00001…`; a shard appears only when it is complete.

    Text must already be clean (`clean_text`); a row that cannot be encoded raises ValueError.
    """

    def __init__(self, out: str, shard_documents: int = 10_000):
        self._rows = _ShardedRows(os.path.join(out, "documents"), shard_documents)

    @property
    def num_documents(self) -> int:
        return self._rows.count

    def write(self, document: Document) -> None:
        self._rows.write(document)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._rows.close(complete=kind is None)


class ConversationWriter:
    """Writes `conversations/00000.jsonl.zst`, `00001…`; a shard appears when it is complete."""

    def __init__(self, out: str, shard_conversations: int = 10_000):
        self._rows = _ShardedRows(os.path.join(out, "conversations"), shard_conversations)

    @property
    def num_conversations(self) -> int:
        return self._rows.count

    def write(self, conversation: Conversation) -> None:
        self._rows.write(conversation)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._rows.close(complete=kind is None)


def _clean_strings(value: Any) -> Any:
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, list):
        return [_clean_strings(item) for item in value]
    if isinstance(value, dict):
        return {clean_text(key): _clean_strings(item) for key, item in value.items()}
    return value


def _read_rows(path: str, parse: Callable[[bytes], Row]) -> Iterator[Row]:
    for number, line in enumerate(read_lines(path), start=1):
        try:
            yield parse(line)
        except ValueError as error:
            message = f"{path} line {number} is not a valid row ({error}); rebuild the artifact"
            raise StageError("bad_input", message) from error


class _ShardedRows:
    def __init__(self, folder: str, shard_rows: int):
        if shard_rows < 1:
            raise ValueError(
                f"shard rows={shard_rows} is below 1; give a positive number of rows per shard"
            )
        self._folder = folder
        self._shard_rows = shard_rows
        self._shard: ShardFile | None = None
        self.count = 0

    def write(self, row: Mapping[str, Any]) -> None:
        if self._shard is None:
            name = f"{self.count // self._shard_rows:05d}{SUFFIX}"
            self._shard = ShardFile(os.path.join(self._folder, name))
        self._shard.write(row)
        self.count += 1
        if self.count % self._shard_rows == 0:
            self.close(complete=True)

    def close(self, *, complete: bool) -> None:
        if self._shard is not None:
            self._shard.close(complete=complete)
            self._shard = None


class ShardFile:
    """One shard, hidden until it is complete. Equal rows give equal bytes."""

    def __init__(self, path: str):
        import zstandard

        os.makedirs(os.path.dirname(path), exist_ok=True)
        self._path = path
        self._hidden = os.path.join(
            os.path.dirname(path), f".{os.path.basename(path)}.{os.getpid()}.part"
        )
        self._file = open(self._hidden, "wb")  # noqa: SIM115
        self._stream = zstandard.ZstdCompressor(level=_COMPRESSION_LEVEL).stream_writer(
            self._file, closefd=False
        )

    def write(self, row: Mapping[str, Any]) -> None:
        try:
            line = json.dumps(row, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
        except UnicodeEncodeError as error:
            row_id = row.get("id")
            raise ValueError(
                f"row id={row_id!r} holds a lone surrogate ({error}); pass it through clean_text"
            ) from error
        self._stream.write(line + b"\n")

    def close(self, *, complete: bool) -> None:
        if complete:
            self._stream.close()
        self._file.close()
        if complete:
            os.replace(self._hidden, self._path)
        else:
            os.remove(self._hidden)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(complete=kind is None)
