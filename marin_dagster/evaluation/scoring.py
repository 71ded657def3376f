"""Turns token sequences into log-likelihoods of their last tokens, many rows at once.

Shapes: B rows, S tokens of a row, T targets of a row, D hidden, V vocabulary.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from marin_dagster.data.mixture import PADDING
from marin_dagster.models.language_model import LanguageModel

SHORTEST_ROW = 256  # tokens; shorter requests share a row
OPEN_ROWS = 64  # rows that are looked at for room


class Request(NamedTuple):
    """Tokens of which the last `num_targets` are scored given all before them."""

    tokens: Sequence[int]
    num_targets: int


class Score(NamedTuple):
    """Log-likelihood of the targets in nats, and whether each was the likeliest token."""

    loglikelihood: float
    is_greedy: bool


class Window(NamedTuple):
    """A part of a request that one row of the model reads."""

    request: int
    inputs: Sequence[int]
    targets: Sequence[int]  # those that follow the last `len(targets)` inputs


class Row(NamedTuple):
    """Windows that share one row of the model, each a segment of its own."""

    windows: list[Window]
    tokens: int
    targets: int


def score(
    model: LanguageModel,
    requests: Sequence[Request],
    seq_len: int,
    batch_tokens: int,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Score]:
    """Scores every request in float32; requests are packed into rows and do not see each other.

    Scores do not depend on `batch_tokens` or on the other requests. A context that does not fit in
    `seq_len` loses its beginning; targets that do not fit are scored window by window.
    """
    model = in_float32(model)
    windows = [w for i, request in enumerate(requests) for w in split(i, request, seq_len)]
    totals = np.zeros(len(requests))
    greedy = np.ones(len(requests), bool)
    if not windows:
        return []
    shape = row_shape(windows, seq_len)
    rows = pack(windows, *shape)
    batch_size = min(max(1, batch_tokens // shape[0]), 1 << (len(rows) - 1).bit_length())
    done = 0
    for start in range(0, len(rows), batch_size):
        batch = rows[start : start + batch_size]
        arrays, owners = _arrays(batch, batch_size, *shape)
        found = [np.asarray(part) for part in _score(model, *map(jnp.asarray, arrays))]
        used = owners >= 0
        np.add.at(totals, owners[used], found[0][used])
        np.logical_and.at(greedy, owners[used], found[1][used])
        done += sum(len(row.windows) for row in batch)
        progress(done, len(windows))
    return [Score(float(a), bool(b)) for a, b in zip(totals, greedy, strict=True)]


def split(index: int, request: Request, seq_len: int) -> Iterator[Window]:
    """The windows of a request: one, unless its targets alone overflow a row."""
    tokens, first = request.tokens, len(request.tokens) - request.num_targets
    assert 0 < first < len(tokens), "a request needs a context token and a target"
    for begin in range(first, len(tokens), seq_len):
        end = min(begin + seq_len, len(tokens))
        yield Window(index, tokens[max(0, end - 1 - seq_len) : end - 1], tokens[begin:end])


def row_shape(windows: Sequence[Window], seq_len: int) -> tuple[int, int]:
    """Tokens and targets of a row: powers of two, so that few shapes are compiled."""
    longest = max(len(window.inputs) for window in windows)
    length = min(seq_len, max(SHORTEST_ROW, 1 << (longest - 1).bit_length()))
    few = length // 4
    return length, few if all(len(window.targets) <= few for window in windows) else length


def pack(windows: Sequence[Window], length: int, num_targets: int) -> list[Row]:
    """Puts windows into rows, longest first, each into the first of the open rows with room."""
    rows: list[Row] = []
    for window in sorted(windows, key=lambda window: len(window.inputs), reverse=True):
        size, targets = len(window.inputs), len(window.targets)
        for place in range(max(0, len(rows) - OPEN_ROWS), len(rows)):
            row = rows[place]
            if row.tokens + size <= length and row.targets + targets <= num_targets:
                row.windows.append(window)
                rows[place] = Row(row.windows, row.tokens + size, row.targets + targets)
                break
        else:
            rows.append(Row([window], size, targets))
    return rows


def in_float32(model: LanguageModel) -> LanguageModel:
    """The model with float32 weights."""
    return jax.tree.map(
        lambda leaf: leaf.astype(jnp.float32) if eqx.is_inexact_array(leaf) else leaf, model
    )


def _arrays(
    batch: Sequence[Row], num_rows: int, length: int, num_targets: int
) -> tuple[tuple[np.ndarray, ...], np.ndarray]:
    """Tokens, segments, places and targets of a batch, and the request of each target or -1."""
    tokens = np.zeros((num_rows, length), np.int32)
    segments = np.full((num_rows, length), PADDING, np.int32)
    places = np.zeros((num_rows, num_targets), np.int32)
    targets = np.zeros((num_rows, num_targets), np.int32)
    owners = np.full((num_rows, num_targets), -1, np.int64)
    for i, row in enumerate(batch):
        at = used = 0
        for segment, window in enumerate(row.windows):
            end, count = at + len(window.inputs), len(window.targets)
            tokens[i, at:end] = window.inputs
            segments[i, at:end] = segment
            places[i, used : used + count] = np.arange(end - count, end)
            targets[i, used : used + count] = window.targets
            owners[i, used : used + count] = window.request
            at, used = end, used + count
    return (tokens, segments, places, targets), owners


@eqx.filter_jit
def _score(
    model: LanguageModel,
    tokens: Int[Array, "B S"],
    segments: Int[Array, "B S"],
    places: Int[Array, "B T"],
    targets: Int[Array, "B T"],
) -> tuple[Float[Array, "B T"], Bool[Array, "B T"]]:
    """Returns the log-likelihood of every target, and whether it was the likeliest token."""
    with jax.default_matmul_precision("highest"):
        hidden, _ = model(tokens, segments)
        logits = model.logits(jnp.take_along_axis(hidden, places[:, :, None], axis=1))
    right = jnp.take_along_axis(logits, targets[:, :, None], axis=-1)[:, :, 0]
    return right - jax.nn.logsumexp(logits, axis=-1), jnp.argmax(logits, axis=-1) == targets
