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
from marin_dagster.models.transformer import Transformer

SMALLEST_ROW, SMALLEST_TARGETS = 32, 16  # rows and targets are padded up to few shapes


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


def score(
    model: Transformer,
    requests: Sequence[Request],
    seq_len: int,
    batch_tokens: int,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Score]:
    """Scores every request in float32; rows of similar length share a batch.

    Padding is masked, so scores do not depend on `batch_tokens` or on the other requests. A context
    that does not fit in `seq_len` loses its beginning; targets that do not fit are scored window by
    window.
    """
    model = in_float32(model)
    windows = [w for i, request in enumerate(requests) for w in split(i, request, seq_len)]
    totals = np.zeros(len(requests))
    greedy = np.ones(len(requests), bool)
    done = 0
    for batch, shape in _batches(windows, seq_len, batch_tokens):
        sums, likeliest = _score(model, *_arrays(batch, *shape))
        for window, part, top in zip(batch, np.asarray(sums), np.asarray(likeliest), strict=False):
            totals[window.request] += part
            greedy[window.request] &= top
        done += len(batch)
        progress(done, len(windows))
    return [Score(float(a), bool(b)) for a, b in zip(totals, greedy, strict=True)]


def split(index: int, request: Request, seq_len: int) -> Iterator[Window]:
    """The windows of a request: one, unless its targets alone overflow a row."""
    tokens, first = request.tokens, len(request.tokens) - request.num_targets
    assert 0 < first < len(tokens), "a request needs a context token and a target"
    for begin in range(first, len(tokens), seq_len):
        end = min(begin + seq_len, len(tokens))
        yield Window(index, tokens[max(0, end - 1 - seq_len) : end - 1], tokens[begin:end])


def in_float32(model: Transformer) -> Transformer:
    """The model with float32 weights."""
    return jax.tree.map(
        lambda leaf: leaf.astype(jnp.float32) if eqx.is_inexact_array(leaf) else leaf, model
    )


def padded_length(length: int, limit: int) -> int:
    """The least row length that is compiled for: a power of two, or one and a half of it."""
    size = SMALLEST_ROW
    while size < length:
        size = size * 3 // 2 if size & (size - 1) == 0 else size * 4 // 3
    return max(length, min(size, limit))


def _batches(
    windows: Sequence[Window], seq_len: int, batch_tokens: int
) -> Iterator[tuple[list[Window], tuple[int, int, int]]]:
    """Groups of windows that are padded to one shape (B, S, T), longest first."""
    groups: dict[tuple[int, int], list[Window]] = {}
    for window in windows:
        targets = SMALLEST_TARGETS
        while targets < len(window.targets):
            targets *= 4
        row = padded_length(len(window.inputs), seq_len)
        groups.setdefault((row, min(targets, row)), []).append(window)
    for (row, targets), group in sorted(groups.items(), reverse=True):
        rows = max(1, batch_tokens // row)
        while rows >= 2 * len(group):
            rows //= 2
        for start in range(0, len(group), rows):
            yield group[start : start + rows], (rows, row, targets)


def _arrays(
    batch: Sequence[Window], rows: int, row: int, num_targets: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    tokens = np.zeros((rows, row), np.int32)
    segments = np.full((rows, row), PADDING, np.int32)
    places = np.zeros((rows, num_targets), np.int32)
    targets = np.zeros((rows, num_targets), np.int32)
    valid = np.zeros((rows, num_targets), bool)
    for i, window in enumerate(batch):
        size, count = len(window.inputs), len(window.targets)
        tokens[i, :size] = window.inputs
        segments[i, :size] = 0
        places[i, :count] = np.arange(size - count, size)
        targets[i, :count] = window.targets
        valid[i, :count] = True
    return tokens, segments, places, targets, valid


@eqx.filter_jit
def _score(
    model: Transformer,
    tokens: Int[Array, "B S"],
    segments: Int[Array, "B S"],
    places: Int[Array, "B T"],
    targets: Int[Array, "B T"],
    valid: Bool[Array, "B T"],
) -> tuple[Float[Array, " B"], Bool[Array, " B"]]:
    """Returns each row's summed log-likelihood of its targets, and whether all were likeliest."""
    with jax.default_matmul_precision("highest"):
        hidden, _ = model(tokens, segments)
        logits = model.logits(jnp.take_along_axis(hidden, places[:, :, None], axis=1))
    right = jnp.take_along_axis(logits, targets[:, :, None], axis=-1)[:, :, 0]
    loglikelihood = right - jax.nn.logsumexp(logits, axis=-1)
    likeliest = jnp.argmax(logits, axis=-1) == targets
    return jnp.where(valid, loglikelihood, 0).sum(-1), (likeliest | ~valid).all(-1)
