"""Scores equal a plain softmax, whatever the batch, the neighbours and the length."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from marin_dagster.evaluation.scoring import Request, pack, row_shape, score, split
from marin_dagster.models.transformer import Transformer
from tests.unit.evaluation.models import SMALL

VOCAB = 50


@pytest.fixture(scope="module")
def model():
    return eqx.filter_jit(Transformer)(SMALL, VOCAB, jax.random.key(0))


def requests(count: int, longest: int = 50) -> list[Request]:
    rng = np.random.default_rng(0)
    found = []
    for _ in range(count):
        size = int(rng.integers(2, longest))
        ids = rng.integers(8, VOCAB, size).tolist()
        found.append(Request([1, *ids], int(rng.integers(1, min(size, 9) + 1))))
    return found


@eqx.filter_jit
def logits_of(model, tokens):
    return model.logits(model(tokens)[0])


def plain_logits(model, tokens) -> np.ndarray:
    """Logits of one row alone, followed by tokens that a causal model does not look at."""
    row = jnp.asarray([*tokens, *[9] * (65 - len(tokens))])[None]
    return np.asarray(logits_of(model, row)[0], np.float64)[: len(tokens)]


def reference(model, request: Request) -> tuple[float, bool]:
    """One request alone, in plain NumPy after the logits."""
    logits = plain_logits(model, request.tokens)
    first = len(request.tokens) - request.num_targets
    total, greedy = 0.0, True
    for place in range(first, len(request.tokens)):
        row, target = logits[place - 1], request.tokens[place]
        total += row[target] - np.log(np.exp(row - row.max()).sum()) - row.max()
        greedy &= bool(row.argmax() == target)
    return total, greedy


def test_scores_equal_one_request_at_a_time(model):
    asked = requests(20)
    for request, found in zip(asked, score(model, asked, 64, 256), strict=True):
        expected, greedy = reference(model, request)
        assert found.loglikelihood == pytest.approx(expected, abs=1e-4)
        assert found.is_greedy == greedy


def test_greedy_continuations_are_recognised(model):
    tokens = [1, 10, 11]
    for _ in range(4):
        tokens.append(int(plain_logits(model, tokens)[-1].argmax()))
    right, wrong = Request(tokens, 4), Request([*tokens[:-1], (tokens[-1] + 1) % VOCAB], 4)
    assert [found.is_greedy for found in score(model, [right, wrong], 64, 256)] == [True, False]


@pytest.mark.parametrize("batch_tokens", [64, 192])
def test_scores_do_not_depend_on_the_batch(model, batch_tokens):
    asked = requests(64)
    expected = score(model, asked, 64, 256)
    for one, other in zip(expected, score(model, asked, 64, batch_tokens), strict=True):
        assert one.loglikelihood == pytest.approx(other.loglikelihood, abs=1e-4)
        assert one.is_greedy == other.is_greedy


def test_a_context_that_does_not_fit_loses_its_beginning(model):
    tokens = np.random.default_rng(1).integers(8, VOCAB, 200).tolist()
    (found,) = score(model, [Request(tokens, 5)], 64, 64)
    assert found.loglikelihood == pytest.approx(
        reference(model, Request(tokens[-65:], 5))[0], abs=1e-4
    )


def test_targets_that_do_not_fit_are_each_scored_once():
    tokens = list(range(200))
    windows = list(split(0, Request(tokens, 190), 64))
    assert [t for window in windows for t in window.targets] == tokens[10:]
    assert all(len(window.inputs) <= 64 for window in windows)
    for window in windows:
        assert window.inputs[-1] == window.targets[-1] - 1


def test_packing_loses_nothing_and_keeps_to_the_row():
    windows = [w for i, r in enumerate(requests(100)) for w in split(i, r, 64)]
    length, targets = row_shape(windows, 64)
    rows = pack(windows, length, targets)
    assert sorted(w.request for row in rows for w in row.windows) == list(range(100))
    for row in rows:
        assert sum(len(w.inputs) for w in row.windows) == row.tokens <= length
        assert sum(len(w.targets) for w in row.windows) == row.targets <= targets


def test_no_requests_have_no_scores(model):
    assert score(model, [], 64, 64) == []
