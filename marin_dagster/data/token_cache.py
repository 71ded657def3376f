"""Token ids as flat files: written once, read by memory map, refused when anything is missing.

`tokens.bin` holds the documents one after another, `offsets.bin` where each begins (int64, one more
than there are documents), `weights.bin` an optional loss weight per token (float16),
`provenance.jsonl.zst` the id, source, tokens and text bytes of each, `cache.json` the rest.
"""

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import xxhash
import zstandard

from marin_dagster.recipe import StageError

FORMAT_VERSION = 2
META_FILE, TOKENS_FILE, OFFSETS_FILE = "cache.json", "tokens.bin", "offsets.bin"
WEIGHTS_FILE, PROVENANCE_FILE = "weights.bin", "provenance.jsonl.zst"
WEIGHT_TYPE = np.dtype("<f2")
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


class TokenCacheWriter:
    """Writes a token cache document by document, then reads it back and compares."""

    def __init__(
        self,
        out: str,
        *,
        vocab_size: int,
        special_ids: Mapping[str, int],
        tokenizer_digest: str,
        packing: Packing,
        weighted: bool = False,
    ):
        self._out = out
        self._type = id_type(vocab_size)
        self._meta: dict[str, Any] = {
            "format_version": FORMAT_VERSION,
            "id_type": self._type.str,
            "vocab_size": vocab_size,
            **special_ids,
            "tokenizer": tokenizer_digest,
            "packing": packing,
            "has_weights": weighted,
        }
        self._offsets = [0]
        self._digests: list[int] = []
        self._text_bytes = 0
        self._tokens = open(os.path.join(out, TOKENS_FILE), "wb")  # noqa: SIM115
        self._weights = open(os.path.join(out, WEIGHTS_FILE), "wb") if weighted else None  # noqa: SIM115
        self._rows = open(os.path.join(out, PROVENANCE_FILE), "wb")  # noqa: SIM115
        self._provenance = zstandard.ZstdCompressor().stream_writer(self._rows, closefd=False)

    @property
    def num_documents(self) -> int:
        return len(self._digests)

    @property
    def num_tokens(self) -> int:
        return self._offsets[-1]

    def write(
        self,
        ids: Sequence[int],
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
        assert wide.max() < self._meta["vocab_size"]
        assert (weights is None) == (self._weights is None)
        data = wide.astype(self._type).tobytes()
        self._tokens.write(data)
        if self._weights is not None:
            assert weights is not None
            assert len(weights) == len(ids)
            extra = np.asarray(weights, WEIGHT_TYPE).tobytes()
            self._weights.write(extra)
            data += extra
        row = {"id": document, "source": source, "tokens": len(ids), "bytes": text_bytes}
        self._provenance.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")
        self._offsets.append(self._offsets[-1] + len(ids))
        self._digests.append(xxhash.xxh3_64_intdigest(data))
        self._text_bytes += text_bytes

    def close(self) -> TokenCacheReader:
        """Completes the files, reads every document back through the reader, and returns it."""
        self.release()
        np.asarray(self._offsets, "<i8").tofile(os.path.join(self._out, OFFSETS_FILE))
        self._meta |= {
            "num_documents": self.num_documents,
            "num_tokens": self.num_tokens,
            "text_bytes": self._text_bytes,
            "digest": xxhash.xxh3_128_hexdigest(np.asarray(self._digests, "<u8").tobytes()),
        }
        with open(os.path.join(self._out, META_FILE), "w", encoding="utf-8") as file:
            json.dump(self._meta, file, indent=1)
            file.write("\n")
        reader = TokenCacheReader(self._out)
        check_read_back(reader, self._digests)
        return reader

    def release(self) -> None:
        """Closes the open files; what was written stays incomplete unless `close` follows."""
        if not self._rows.closed:
            self._provenance.close()
        for file in (self._tokens, self._weights, self._rows):
            if file is not None:
                file.close()


def check_read_back(reader: TokenCacheReader, digests: Sequence[int]) -> None:
    """Raises StageError unless the reader yields exactly the documents that were written."""
    if reader.num_documents != len(digests):
        raise StageError(
            "error",
            f"{reader.folder} reads {reader.num_documents} of {len(digests)} written documents; "
            "the disk or the cache format is at fault, build it again",
        )
    for index, digest in enumerate(digests):
        data = reader.document(index).tobytes()
        weights = reader.document_weights(index)
        data += weights.tobytes() if weights is not None else b""
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
