"""Token ids as flat files: written once, read by memory map, refused when anything is missing.

`tokens.bin` holds the documents one after another, `offsets.bin` where each begins (int64, one more
than there are documents), `weights.bin` an optional loss weight per token (float16),
`provenance.jsonl.zst` the id, source, tokens and text bytes of each, `cache.json` the rest.

A cache is joined from parts, each written by one worker: a folder with a stretch of `tokens.bin`
and `weights.bin`, the lines of the provenance, and a `DOCUMENT` for each.
"""

import itertools
import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, Self

import numpy as np
import xxhash
import zstandard

from marin_dagster.recipe import StageError

FORMAT_VERSION = 2
META_FILE, TOKENS_FILE, OFFSETS_FILE = "cache.json", "tokens.bin", "offsets.bin"
WEIGHTS_FILE, PROVENANCE_FILE = "weights.bin", "provenance.jsonl.zst"
DOCUMENTS_FILE, ROWS_FILE = "documents.bin", "rows.jsonl"  # of a part
DOCUMENT = np.dtype([("tokens", "<u4"), ("bytes", "<u8"), ("digest", "<u8")])
WEIGHT_TYPE = np.dtype("<f2")
_COPIED_BYTES = 1 << 20  # at once
Packing = Literal["concatenated", "whole"]
_KEYS = {
    "format_version": int,
    "id_type": str,
    "vocab_size": int,
    "bos_id": int,
    "eos_id": int,
    "pad_id": int,
    "tokenizer": str,
    "digest": str,
    "packing": str,
    "num_documents": int,
    "num_tokens": int,
    "text_bytes": int,
    "has_weights": bool,
}


def id_type(vocab_size: int) -> np.dtype:
    """The narrowest unsigned type that holds every id of a vocabulary."""
    return np.dtype("<u2") if vocab_size <= 1 << 16 else np.dtype("<u4")


@dataclass(frozen=True, kw_only=True)
class CacheHead:
    """What `cache.json` says whatever the documents are."""

    vocab_size: int
    bos_id: int
    eos_id: int
    pad_id: int
    tokenizer: str  # digest
    packing: Packing
    has_weights: bool


class TokenCacheReader:
    """A token cache: documents, their ids, and what is known of them.

    Raises StageError that names the file and the field when the cache is absent, unfinished, empty,
    of another format, or when its files disagree.
    """

    def __init__(self, folder: str):
        self.folder = folder
        self.meta = _read_meta(folder)
        self.num_documents: int = self.meta["num_documents"]
        self.num_tokens: int = self.meta["num_tokens"]
        self.vocab_size: int = self.meta["vocab_size"]
        self.eos_id: int = self.meta["eos_id"]
        self.pad_id: int = self.meta["pad_id"]
        self.text_bytes: int = self.meta["text_bytes"]
        self.packing: Packing = self.meta["packing"]
        if self.num_documents == 0 or self.num_tokens == 0:
            raise StageError(
                "bad_input",
                f"{folder} holds {self.num_documents} documents and {self.num_tokens} tokens; "
                "a cache may not be empty, rebuild it from documents that are not",
            )
        self.offsets = self._map(OFFSETS_FILE, np.dtype("<i8"), self.num_documents + 1)
        self.tokens = self._map(TOKENS_FILE, np.dtype(self.meta["id_type"]), self.num_tokens)
        self.weights: np.ndarray | None = None
        if self.meta["has_weights"]:
            self.weights = self._map(WEIGHTS_FILE, WEIGHT_TYPE, self.num_tokens)
        if self.offsets[0] != 0 or self.offsets[-1] != self.num_tokens:
            raise StageError(
                "bad_input",
                f"{folder}/{OFFSETS_FILE} spans {self.offsets[0]} to {self.offsets[-1]}, not 0 to "
                f"num_tokens={self.num_tokens}; the cache is damaged, rebuild it",
            )

    def document(self, index: int) -> np.ndarray:
        """The ids of one document, with the ids that open and close it."""
        return self.tokens[self.offsets[index] : self.offsets[index + 1]]

    def document_weights(self, index: int) -> np.ndarray | None:
        """The loss weights of one document's ids, if the cache has any."""
        if self.weights is None:
            return None
        return self.weights[self.offsets[index] : self.offsets[index + 1]]

    def _map(self, name: str, dtype: np.dtype, length: int) -> np.ndarray:
        path = os.path.join(self.folder, name)
        size = os.path.getsize(path) if os.path.isfile(path) else -1
        if size != length * dtype.itemsize:
            found = "is missing" if size < 0 else f"has {size} bytes"
            raise StageError(
                "bad_input",
                f"{path} {found} where {META_FILE} promises {length * dtype.itemsize}; "
                "the cache is incomplete, rebuild it",
            )
        return np.memmap(path, dtype=dtype, mode="r", shape=(length,))


class PartWriter:
    """Writes one part of a token cache, document by document; as a context manager it closes."""

    def __init__(self, folder: str, head: CacheHead):
        os.makedirs(folder, exist_ok=True)
        self._head, self._type = head, id_type(head.vocab_size)
        self._documents: list[tuple[int, int, int]] = []
        self._path = os.path.join(folder, DOCUMENTS_FILE)
        names = [TOKENS_FILE, ROWS_FILE, *([WEIGHTS_FILE] if head.has_weights else [])]
        self.files = (*names, DOCUMENTS_FILE)
        self._open = {name: open(os.path.join(folder, name), "wb") for name in names}  # noqa: SIM115

    def write(
        self,
        ids: Sequence[int] | np.ndarray,
        *,
        document: str,
        source: str,
        text_bytes: int,
        weights: Sequence[float] | None = None,
    ) -> None:
        """Appends one document; `text_bytes` are the UTF-8 bytes that its loss is spread over."""
        wide = np.asarray(ids, np.int64)
        assert wide.size > 0
        assert wide.min() >= 0
        assert wide.max() < self._head.vocab_size
        assert (weights is not None) == self._head.has_weights
        data = wide.astype(self._type).tobytes()
        self._open[TOKENS_FILE].write(data)
        if weights is not None:
            assert len(weights) == wide.size
            extra = np.asarray(weights, WEIGHT_TYPE).tobytes()
            self._open[WEIGHTS_FILE].write(extra)
            data += extra
        row = {"id": document, "source": source, "tokens": wide.size, "bytes": text_bytes}
        self._open[ROWS_FILE].write(json.dumps(row, ensure_ascii=False).encode() + b"\n")
        self._documents.append((wide.size, text_bytes, xxhash.xxh3_64_intdigest(data)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._open.values():
            file.close()
        np.array(self._documents, DOCUMENT).tofile(self._path)


def join_parts(out: str, head: CacheHead, parts: Sequence[str]) -> TokenCacheReader:
    """Makes a cache of the parts in these folders, in order; reads it back through the reader.

    The parts stay. Raises StageError when they hold no document, or read back differently.
    """
    documents = np.concatenate(
        [np.fromfile(os.path.join(part, DOCUMENTS_FILE), DOCUMENT) for part in parts]
    )
    offsets = np.zeros(len(documents) + 1, "<i8")
    np.cumsum(documents["tokens"], out=offsets[1:])
    offsets.tofile(os.path.join(out, OFFSETS_FILE))
    for name in (TOKENS_FILE, *([WEIGHTS_FILE] if head.has_weights else [])):
        with open(os.path.join(out, name), "wb") as file:
            _append(parts, name, file)
    with open(os.path.join(out, PROVENANCE_FILE), "wb") as file:
        compressed = zstandard.ZstdCompressor().stream_writer(file, closefd=False)
        _append(parts, ROWS_FILE, compressed)
        compressed.close()
    digests = np.ascontiguousarray(documents["digest"])
    meta = {
        "format_version": FORMAT_VERSION,
        "id_type": id_type(head.vocab_size).str,
        **asdict(head),
        "num_documents": len(documents),
        "num_tokens": int(offsets[-1]),
        "text_bytes": int(documents["bytes"].sum()),
        "digest": xxhash.xxh3_128_hexdigest(digests.tobytes()),
    }
    with open(os.path.join(out, META_FILE), "w", encoding="utf-8") as file:
        json.dump(meta, file, indent=1)
        file.write("\n")
    reader = TokenCacheReader(out)
    check_read_back(reader, digests.tolist())
    return reader


def _append(parts: Sequence[str], name: str, target: Any) -> None:
    for part in parts:
        with open(os.path.join(part, name), "rb") as file:
            shutil.copyfileobj(file, target, _COPIED_BYTES)


def check_read_back(reader: TokenCacheReader, digests: Sequence[int]) -> None:
    """Raises StageError unless the reader yields exactly the documents that were written."""
    if reader.num_documents != len(digests):
        raise StageError(
            "error",
            f"{reader.folder} reads {reader.num_documents} of {len(digests)} written documents; "
            "the disk or the cache format is at fault, build it again",
        )
    tokens, weights = np.asarray(reader.tokens), reader.weights
    spans = itertools.pairwise(reader.offsets.tolist())
    for index, ((start, stop), digest) in enumerate(zip(spans, digests, strict=True)):
        data = tokens[start:stop].tobytes()
        if weights is not None:
            data += weights[start:stop].tobytes()
        if xxhash.xxh3_64_intdigest(data) != digest:
            raise StageError(
                "error",
                f"document {index} of {reader.folder} reads back differently than it was written; "
                "the disk or the cache format is at fault, build it again",
            )


def _read_meta(folder: str) -> dict[str, Any]:
    path = os.path.join(folder, META_FILE)
    if not os.path.isfile(path):
        raise StageError(
            "bad_input", f"{path} is missing: no finished token cache is there; build it first"
        )
    with open(path, encoding="utf-8") as file:
        meta = json.load(file)
    if meta.get("format_version") != FORMAT_VERSION:
        raise StageError(
            "bad_input",
            f"{path}: format_version={meta.get('format_version')!r}, this code reads "
            f"{FORMAT_VERSION}; tokenize again",
        )
    wrong = [key for key, kind in _KEYS.items() if not isinstance(meta.get(key), kind)]
    if wrong:
        raise StageError(
            "bad_input",
            f"{path} lacks {', '.join(wrong)}, which no default can replace; tokenize again",
        )
    return meta
