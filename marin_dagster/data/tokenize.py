"""Turns documents and conversations into token caches that training reads by memory map.

A document is `<s>`, its text, `</s>`: so the first token of a text is predicted too, and training,
evaluation and chat all begin alike. No text yields a control id, whatever it spells.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from marin_dagster.data.documents import (
    Conversation,
    Document,
    read_conversations,
    read_documents,
)
from marin_dagster.data.tokenizer import TextTokenizer, count_control_spellings, load_tokenizer
from marin_dagster.kinds import Conversations, Documents, TokenCache, Tokenizer
from marin_dagster.recipe import Context, Counts, StageError, Summary

if TYPE_CHECKING:
    from marin_dagster.data.token_cache import TokenCacheReader, TokenCacheWriter

Split = Literal["train", "validation"]
SPLIT_SEED = 20_240
BATCH_CHARACTERS = 1_000_000
CHECKED_TEXTS = 20  # documents that are decoded again and compared with their text


@dataclass(frozen=True, kw_only=True)
class TokenizeDocuments(TokenCache):
    """Encodes one split of documents; a hash of its id sends a document to train or validation.

    Recipes that share `validation_fraction` share the rule, so their splits never overlap.
    """

    stage: ClassVar[str] = "tokenized"

    documents: Documents
    tokenizer: Tokenizer
    split: Split = "train"
    validation_fraction: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_split(self.split, self.validation_fraction, self.address)

    def build(self, ctx: Context) -> Summary:
        tokenizer = load_tokenizer(ctx.path(self.tokenizer))
        counts = _Tally()
        writer = _open_writer(ctx.out, tokenizer, weighted=False)
        texts: list[str] = []
        try:
            kept = self._of_split(read_documents(ctx.path(self.documents)), counts)
            for batch in _batches(kept):
                encoded = tokenizer.encode_batch(
                    [document["text"] for document in batch], ctx.placement.workers
                )
                for document, ids in zip(batch, encoded, strict=True):
                    _write_document(writer, document, ids, tokenizer)
                    counts.spelled += count_control_spellings(document["text"])
                    if len(texts) < CHECKED_TEXTS:
                        texts.append(document["text"])
                ctx.progress(counts.read, tokens=writer.num_tokens)
            reader = _finish(writer, counts, self.address)
        finally:
            writer.release()
        _check_texts(reader, texts, tokenizer)
        return Summary(
            numbers={**_numbers(reader), "control_spellings": counts.spelled},
            counts=counts.summary("documents", writer.num_documents),
            tables={"Document lengths": _length_table(reader)},
        )

    def _of_split(self, documents: Iterable[Document], counts: "_Tally") -> Iterator[Document]:
        for document in documents:
            counts.read += 1
            if split_of(document["id"], self.validation_fraction) != self.split:
                counts.drop("other_split")
            elif not document["text"]:
                counts.drop("empty")
            else:
                yield document


@dataclass(frozen=True, kw_only=True)
class TokenizeConversations(TokenCache):
    """Encodes conversations with loss weight 1 on what the assistant writes, 0 elsewhere.

    A conversation is never cut: one longer than `seq_len` is dropped and counted.
    """

    stage: ClassVar[str] = "tokenized"

    conversations: Conversations
    tokenizer: Tokenizer
    seq_len: int  # tokens per row of the training that reads this
    split: Split = "train"
    validation_fraction: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_split(self.split, self.validation_fraction, self.address)
        if self.seq_len < 2:
            raise ValueError(
                f"seq_len={self.seq_len} of {self.address} is below 2; "
                "give the tokens per row of the training that reads it"
            )

    def build(self, ctx: Context) -> Summary:
        tokenizer = load_tokenizer(ctx.path(self.tokenizer))
        counts = _Tally()
        writer = _open_writer(ctx.out, tokenizer, weighted=True)
        try:
            for conversation in read_conversations(ctx.path(self.conversations)):
                counts.read += 1
                self._write(writer, conversation, tokenizer, counts)
                ctx.progress(counts.read, unit="conversations", tokens=writer.num_tokens)
            reader = _finish(writer, counts, self.address)
        finally:
            writer.release()
        assert reader.weights is not None
        share = float(reader.weights.astype("f8").mean())
        check_supervised_share(share, self.address)
        return Summary(
            numbers={
                **_numbers(reader),
                "supervised_share": round(share, 4),
                "control_spellings": counts.spelled,
            },
            counts=counts.summary("conversations", writer.num_documents),
            tables={"Conversation lengths": _length_table(reader)},
            notes={"One conversation as it is trained on": _example(reader, tokenizer)},
        )

    def _write(
        self,
        writer: "TokenCacheWriter",
        conversation: Conversation,
        tokenizer: TextTokenizer,
        counts: "_Tally",
    ) -> None:
        from marin_dagster.posttraining.chat import ROLES, render

        messages = conversation["messages"]
        written = [m["content"] for m in messages if m["role"] == "assistant"]
        if split_of(conversation["id"], self.validation_fraction) != self.split:
            counts.drop("other_split")
        elif any(message["role"] not in ROLES for message in messages):
            counts.drop("unknown_role")
        elif not any(written):
            counts.drop("no_assistant_turn")
        else:
            ids, weights = render(messages, tokenizer)
            if len(ids) > self.seq_len:
                counts.drop("longer_than_seq_len")
                return
            counts.spelled += sum(count_control_spellings(m["content"]) for m in messages)
            writer.write(
                ids,
                document=conversation["id"],
                source=conversation["source"],
                text_bytes=sum(len(text.encode()) for text in written),
                weights=weights,
            )


def split_of(document: str, validation_fraction: float) -> Split:
    """The split of a document, from its id alone."""
    import xxhash

    draw = xxhash.xxh3_64_intdigest(document.encode(), seed=SPLIT_SEED) / 2**64
    return "validation" if draw < validation_fraction else "train"


def check_supervised_share(share: float, address: str) -> None:
    """Raises StageError when no token, or every token, would be trained on."""
    if not 0.0 < share < 1.0:
        raise StageError(
            "bad_input",
            f"supervised share of {address} is {share:g}, it must lie between 0 and 1: the loss "
            "would fall on no token or on every token; check the roles of the messages",
        )


class _Tally:
    """What became of the rows of a stage."""

    def __init__(self) -> None:
        self.read = self.spelled = 0
        self.dropped: dict[str, int] = {}

    def drop(self, reason: str) -> None:
        self.dropped[reason] = self.dropped.get(reason, 0) + 1

    def summary(self, unit: str, kept: int) -> Counts:
        return Counts(unit=unit, read=self.read, kept=kept, dropped=self.dropped)


def _check_split(split: str, fraction: float, address: str) -> None:
    if split not in ("train", "validation"):
        raise ValueError(f"split={split!r} of {address} is neither 'train' nor 'validation'")
    if not 0.0 <= fraction < 1.0 or (split == "validation" and fraction == 0.0):
        raise ValueError(
            f"validation_fraction={fraction} of {address} is outside 0 to 1, or 0 for the "
            "validation split; give both splits the same fraction, such as 0.01"
        )


def _open_writer(out: str, tokenizer: TextTokenizer, *, weighted: bool) -> "TokenCacheWriter":
    from marin_dagster.data.token_cache import TokenCacheWriter

    return TokenCacheWriter(
        out,
        vocab_size=tokenizer.vocab_size,
        special_ids={
            "bos_id": tokenizer.bos_id,
            "eos_id": tokenizer.eos_id,
            "pad_id": tokenizer.pad_id,
        },
        tokenizer_digest=tokenizer.digest,
        packing="whole" if weighted else "concatenated",
        weighted=weighted,
    )


def _batches(documents: Iterable[Document]) -> Iterator[list[Document]]:
    batch: list[Document] = []
    size = 0
    for document in documents:
        batch.append(document)
        size += len(document["text"])
        if size >= BATCH_CHARACTERS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _write_document(
    writer: "TokenCacheWriter", document: Document, ids: list[int], tokenizer: TextTokenizer
) -> None:
    writer.write(
        [tokenizer.bos_id, *ids, tokenizer.eos_id],
        document=document["id"],
        source=document["source"],
        text_bytes=len(document["text"].encode()),
    )


def _finish(writer: "TokenCacheWriter", counts: _Tally, address: str) -> "TokenCacheReader":
    if writer.num_documents == 0:
        reasons = ", ".join(f"{n} {reason}" for reason, n in counts.dropped.items()) or "no input"
        raise StageError(
            "bad_input",
            f"{address} kept 0 of {counts.read} documents: {reasons}; "
            "check the input, the split and the lengths",
        )
    return writer.close()


def _check_texts(reader: "TokenCacheReader", texts: list[str], tokenizer: TextTokenizer) -> None:
    for index, text in enumerate(texts):
        if tokenizer.decode(reader.document(index).tolist()) != text:
            raise StageError(
                "error",
                f"document {index} of {reader.folder} does not decode to its text; "
                "the tokenizer is at fault, train it again",
            )


def _numbers(reader: "TokenCacheReader") -> dict[str, Any]:
    return {
        "documents": reader.num_documents,
        "tokens": reader.num_tokens,
        "text_bytes": reader.text_bytes,
        "vocab_size": reader.vocab_size,
        "bytes_per_token": round(reader.text_bytes / reader.num_tokens, 4),
    }


def _length_table(reader: "TokenCacheReader") -> list[dict[str, Any]]:
    import numpy as np

    lengths = np.diff(reader.offsets)
    return [
        {"percentile": q, "tokens": int(np.percentile(lengths, q))} for q in (0, 10, 50, 90, 100)
    ]


def _example(reader: "TokenCacheReader", tokenizer: TextTokenizer) -> str:
    from marin_dagster.posttraining.chat import show_mask

    weights = reader.document_weights(0)
    assert weights is not None
    return show_mask(reader.document(0).tolist(), weights.tolist(), tokenizer)
