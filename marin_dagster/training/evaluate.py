"""Turns held-out token caches into losses: nats per token and bits per byte of text."""

import math
from collections.abc import Iterator, Mapping

import numpy as np

from marin_dagster.data.mixture import PADDING, Row, Rows
from marin_dagster.data.token_cache import TokenCacheReader
from marin_dagster.models.language_model import LanguageModel
from marin_dagster.training.step import evaluation_sums


def evaluate(
    model: LanguageModel, validation: Mapping[str, Rows], batch_size: int
) -> dict[str, float]:
    """Measures every cache, all of it, in order.

    Returns `eval/loss` (nats per weighted token over all caches), `eval/bits_per_byte`, and both
    per cache where there are several. The bytes are those of the text that the loss covers.
    """
    metrics: dict[str, float] = {}
    nats = tokens = text_bytes = 0.0
    for name, rows in validation.items():
        part = [evaluation_sums(model, batch) for batch in _batches(rows, batch_size)]
        part_nats = float(sum(float(row[0]) for row in part))
        part_tokens = float(sum(float(row[1]) for row in part))
        part_bytes = rows.reader.text_bytes
        nats, tokens = nats + part_nats, tokens + part_tokens
        text_bytes += part_bytes
        if len(validation) > 1:
            metrics[f"eval/{name}/loss"] = part_nats / part_tokens
            metrics[f"eval/{name}/bits_per_byte"] = part_nats / math.log(2) / part_bytes
    if tokens:
        metrics["eval/loss"] = nats / tokens
        metrics["eval/bits_per_byte"] = nats / math.log(2) / text_bytes
    return metrics


def unigram_entropy(reader: TokenCacheReader) -> float:
    """Entropy of a cache's token frequencies, in nats: what a model without context reaches."""
    counts = np.bincount(np.asarray(reader.tokens), minlength=reader.vocab_size)
    share = counts[counts > 0] / counts.sum()
    return float(-(share * np.log(share)).sum())


def _batches(rows: Rows, batch_size: int) -> Iterator[dict[str, np.ndarray]]:
    """Batches in order; the last one is filled up with padding."""
    for start in range(0, rows.num_rows, batch_size):
        stop = min(start + batch_size, rows.num_rows)
        part = [rows.row(index) for index in range(start, stop)]
        part += [_empty(part[0])] * (batch_size - len(part))
        yield {
            name: np.stack([getattr(row, name) for row in part])
            for name in ("tokens", "targets", "loss_weights", "segment_ids")
        }


def _empty(like: Row) -> Row:
    return Row(
        tokens=np.zeros_like(like.tokens),
        targets=np.zeros_like(like.targets),
        loss_weights=np.zeros_like(like.loss_weights),
        segment_ids=np.full_like(like.segment_ids, PADDING),
    )
