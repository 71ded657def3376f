"""Turns documents and conversations into ids, and says which of them a token cache leaves out."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from marin_dagster.data.documents import (
    Conversation,
    Document,
    parse_conversation,
    parse_document,
)
from marin_dagster.data.pipeline import Drop
from marin_dagster.data.token_cache import CacheHead
from marin_dagster.data.tokenizer import TextTokenizer

Split = Literal["train", "validation"]
SPLIT_SEED = 20_240


@dataclass(frozen=True)
class Encoded:
    """The ids of one document or conversation, with those that open and close it."""

    ids: Sequence[int] | np.ndarray
    text_bytes: int  # that the loss is spread over
    weights: Sequence[int] | None = None


@dataclass(frozen=True, kw_only=True)
class Encoder(ABC):
    """What the workers of a token cache do with a row. It is pickled; its repr is its identity."""

    tokenizer: str  # folder
    head: CacheHead
    split: Split
    validation_fraction: float

    @abstractmethod
    def parse(self, line: bytes) -> Any:
        """A row from a line of a shard. Raises ValueError on a bad one."""

    @abstractmethod
    def text_of(self, row: Any) -> str:
        """All that is encoded of a row."""

    @abstractmethod
    def refuse(self, row: Any) -> str:
        """Why a row is left out; empty when it is not."""

    @abstractmethod
    def encode(self, rows: Sequence[Any], tokenizer: TextTokenizer) -> Sequence[Encoded | Drop]:
        """Encodes rows that were not refused; some are too long all the same."""

    def identity(self) -> str:
        """What decides the ids, wherever the tokenizer lies."""
        return f"{type(self).__name__} {self.head} {self.split} {self.validation_fraction}"


@dataclass(frozen=True, kw_only=True)
class DocumentEncoder(Encoder):
    """Encodes texts, each between the ids that open and close one."""

    def parse(self, line: bytes) -> Document:
        return parse_document(line)

    def text_of(self, row: Document) -> str:
        return row["text"]

    def refuse(self, row: Document) -> str:
        if split_of(row["id"], self.validation_fraction) != self.split:
            return "other_split"
        return "" if row["text"] else "empty"

    def encode(self, rows: Sequence[Document], tokenizer: TextTokenizer) -> Sequence[Encoded]:
        texts = [row["text"] for row in rows]
        first, last = [tokenizer.bos_id], [tokenizer.eos_id]
        return [
            Encoded(np.concatenate((first, ids, last)), len(text.encode()))
            for text, ids in zip(texts, tokenizer.encode_batch(texts), strict=True)
        ]


@dataclass(frozen=True, kw_only=True)
class ConversationEncoder(Encoder):
    """Encodes chats with a weight on what the assistant writes."""

    seq_len: int  # tokens; what is longer is dropped

    def parse(self, line: bytes) -> Conversation:
        return parse_conversation(line)

    def text_of(self, row: Conversation) -> str:
        return "\n".join(message["content"] for message in row["messages"])

    def refuse(self, row: Conversation) -> str:
        from marin_dagster.posttraining.chat import ROLES

        if split_of(row["id"], self.validation_fraction) != self.split:
            return "other_split"
        if any(message["role"] not in ROLES for message in row["messages"]):
            return "unknown_role"
        return "" if any(_written(row)) else "no_assistant_turn"

    def encode(
        self, rows: Sequence[Conversation], tokenizer: TextTokenizer
    ) -> Sequence[Encoded | Drop]:
        from marin_dagster.posttraining.chat import render

        found: list[Encoded | Drop] = []
        for row in rows:
            ids, weights = render(row["messages"], tokenizer)
            if len(ids) > self.seq_len:
                found.append(Drop("longer_than_seq_len"))
                continue
            size = sum(len(text.encode()) for text in _written(row))
            found.append(Encoded(ids, size, weights))
        return found

    def identity(self) -> str:
        return f"{super().identity()} {self.seq_len}"


def split_of(document: str, validation_fraction: float) -> Split:
    """The split of a document, from its id alone."""
    import xxhash

    draw = xxhash.xxh3_64_intdigest(document.encode(), seed=SPLIT_SEED) / 2**64
    return "validation" if draw < validation_fraction else "train"


def _written(row: Conversation) -> list[str]:
    return [message["content"] for message in row["messages"] if message["role"] == "assistant"]
