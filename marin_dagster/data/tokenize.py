"""Turns documents and conversations into token caches that training reads by memory map.

A document is `<s>`, its text, `</s>`: so the first token of a text is predicted too, and training,
evaluation and chat all begin alike. No text yields a control id, whatever it spells.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from marin_dagster.data.compression import compression_tables
from marin_dagster.data.documents import shard_paths
from marin_dagster.data.tokenizer import TextTokenizer, load_tokenizer
from marin_dagster.kinds import Conversations, Documents, TokenCache, Tokenizer
from marin_dagster.recipe import Context, StageError, Summary

if TYPE_CHECKING:
    from marin_dagster.data.pipeline import MapReport
    from marin_dagster.data.token_cache import TokenCacheReader
    from marin_dagster.data.token_encoders import Encoder

MAX_ERROR_SHARE = 0.01  # of rows that cannot be read


@dataclass(frozen=True, kw_only=True)
class TokenizeDocuments(TokenCache):
    """Encodes one split of documents; a hash of its id sends a document to train or validation.

    Recipes that share `validation_fraction` share the rule, so their splits never overlap.
    """

    stage: ClassVar[str] = "tokenized"

    documents: Documents
    tokenizer: Tokenizer
    split: Literal["train", "validation"] = "train"
    validation_fraction: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_split(self.split, self.validation_fraction, self.address)

    def build(self, ctx: Context) -> Summary:
        """Encodes shards side by side, then joins what they made."""
        from marin_dagster.data.token_encoders import DocumentEncoder

        tokenizer = load_tokenizer(ctx.path(self.tokenizer))
        encoder = DocumentEncoder(**_encoder_fields(ctx, self, tokenizer))
        paths = shard_paths(ctx.path(self.documents))
        reader, report = _tokenize(ctx, paths, encoder)
        return Summary(
            numbers=_numbers(reader, report),
            counts=report.counts,
            tables={"Document lengths": _length_table(reader), **_tables(report)},
        )


@dataclass(frozen=True, kw_only=True)
class TokenizeConversations(TokenCache):
    """Encodes conversations with loss weight 1 on what the assistant writes, 0 elsewhere.

    A conversation is never cut: one longer than `seq_len` is dropped and counted.
    """

    stage: ClassVar[str] = "tokenized"

    conversations: Conversations
    tokenizer: Tokenizer
    seq_len: int  # tokens per row of the training that reads this
    split: Literal["train", "validation"] = "train"
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
        """Encodes shards side by side, then joins what they made."""
        from marin_dagster.data.token_encoders import ConversationEncoder

        tokenizer = load_tokenizer(ctx.path(self.tokenizer))
        encoder = ConversationEncoder(**_encoder_fields(ctx, self, tokenizer), seq_len=self.seq_len)
        paths = shard_paths(ctx.path(self.conversations), "conversations")
        reader, report = _tokenize(ctx, paths, encoder)
        assert reader.weights is not None
        share = float(reader.weights.astype("f8").mean())
        check_supervised_share(share, self.address)
        return Summary(
            numbers={**_numbers(reader, report), "supervised_share": round(share, 4)},
            counts=replace(report.counts, unit="conversations"),
            tables={"Conversation lengths": _length_table(reader), **_tables(report)},
            notes={"One conversation as it is trained on": _example(reader, tokenizer)},
        )


def check_supervised_share(share: float, address: str) -> None:
    """Raises StageError when no token, or every token, would be trained on."""
    if not 0.0 < share < 1.0:
        raise StageError(
            "bad_input",
            f"supervised share of {address} is {share:g}, it must lie between 0 and 1: the loss "
            "would fall on no token or on every token; check the roles of the messages",
        )


def _check_split(split: str, fraction: float, address: str) -> None:
    if split not in ("train", "validation"):
        raise ValueError(f"split={split!r} of {address} is neither 'train' nor 'validation'")
    if not 0.0 <= fraction < 1.0 or (split == "validation" and fraction == 0.0):
        raise ValueError(
            f"validation_fraction={fraction} of {address} is outside 0 to 1, or 0 for the "
            "validation split; give both splits the same fraction, such as 0.01"
        )


def _encoder_fields(
    ctx: Context,
    recipe: TokenizeDocuments | TokenizeConversations,
    tokenizer: TextTokenizer,
) -> dict[str, Any]:
    from marin_dagster.data.token_cache import CacheHead

    weighted = isinstance(recipe, TokenizeConversations)
    head = CacheHead(
        vocab_size=tokenizer.vocab_size,
        bos_id=tokenizer.bos_id,
        eos_id=tokenizer.eos_id,
        pad_id=tokenizer.pad_id,
        tokenizer=tokenizer.digest,
        packing="whole" if weighted else "concatenated",
        has_weights=weighted,
    )
    return {
        "tokenizer": ctx.path(recipe.tokenizer),
        "head": head,
        "split": recipe.split,
        "validation_fraction": recipe.validation_fraction,
    }


def _tokenize(
    ctx: Context, paths: Sequence[str], encoder: "Encoder"
) -> tuple["TokenCacheReader", "MapReport"]:
    """Makes a part of each shard in worker processes, and one cache in ctx.out of all parts."""
    from marin_dagster.data.pipeline import refuse_too_many_errors, run_shards
    from marin_dagster.data.token_cache import join_parts

    address = ctx.recipe.address
    make = partial(_pipeline, tuple(paths), encoder)
    done = run_shards(ctx, paths, make, identity=encoder.identity())
    refuse_too_many_errors(done.report, MAX_ERROR_SHARE, os.path.dirname(paths[0]))
    if done.report.kept == 0:
        dropped = done.report.dropped.items()
        reasons = ", ".join(f"{n} {reason}" for reason, n in dropped) or "no input"
        raise StageError(
            "bad_input",
            f"{address} kept 0 of {done.report.read} documents: {reasons}; "
            "check the input, the split and the lengths",
        )
    folders = [os.path.dirname(os.path.join(done.work, files[0])) for files in done.files]
    return join_parts(ctx.out, encoder.head, folders), done.report


def _pipeline(paths: Sequence[str], encoder: "Encoder", work: str) -> list[Any]:
    from marin_dagster.data.shard_steps import Ledger
    from marin_dagster.data.token_steps import TokenizeShard

    return [TokenizeShard(work, paths, encoder, Ledger())]


def _numbers(reader: "TokenCacheReader", report: "MapReport") -> dict[str, Any]:
    spelled = report.tallies.get("text", {}).get("control_spellings", 0)
    return {
        "documents": reader.num_documents,
        "tokens": reader.num_tokens,
        "text_bytes": reader.text_bytes,
        "vocab_size": reader.vocab_size,
        "bytes_per_token": round(reader.text_bytes / reader.num_tokens, 4),
        "control_spellings": spelled,
    }


def _tables(report: "MapReport") -> dict[str, Sequence[Mapping[str, Any]]]:
    return {**compression_tables(report.tallies), **report.tables()}


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
