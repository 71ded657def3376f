import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from marin_dagster.models.router import router_bias, with_router_bias
from marin_dagster.models.transformer import Transformer
from tests.unit.models.test_layers import TINY

VOCAB = 40


@pytest.fixture(scope="module")
def model() -> Transformer:
    plain = Transformer(TINY, VOCAB, jax.random.key(0))
    return with_router_bias(plain, 0.1 * jax.random.normal(jax.random.key(1), (2, 4)))


@eqx.filter_jit
def read(model: Transformer, ids, segments=None):
    hidden, stats = model(ids, segments)
    return hidden, stats, model.logits(hidden)


@eqx.filter_jit
def decode(model: Transformer, ids, places, cache):
    return model.decode(ids, places, places >= 0, cache)


def tokens(seed: int, rows: int = 2) -> jax.Array:
    return jax.random.randint(jax.random.key(seed), (rows, 24), 0, VOCAB)


def logits(model: Transformer, ids, segments=None):
    return read(model, ids, segments)[2]


def test_the_future_does_not_leak(model):
    first = tokens(0)
    second = first.at[:, 15:].set(tokens(1)[:, 15:])
    before, after = logits(model, first), logits(model, second)
    np.testing.assert_allclose(before[:, :15], after[:, :15], atol=1e-6)
    assert float(jnp.abs(before[:, 15:] - after[:, 15:]).max()) > 1e-3


def test_documents_in_a_row_do_not_see_each_other(model):
    segments = jnp.asarray([[0] * 10 + [1] * 14] * 2)
    first = tokens(0)
    second = first.at[:, :10].set(tokens(1)[:, :10])
    before, after = logits(model, first, segments), logits(model, second, segments)
    np.testing.assert_allclose(before[:, 10:], after[:, 10:], atol=1e-6)


def test_a_document_reads_the_same_alone_and_packed(model):
    row = tokens(0, rows=1)
    segments = jnp.asarray([[0] * 10 + [1] * 14])
    packed = logits(model, row, segments)[:, 10:]
    alone = logits(model, row[:, 10:])
    np.testing.assert_allclose(packed, alone, atol=1e-5)


def test_decoding_with_a_cache_equals_reading_the_whole_row(model):
    ids = tokens(0)
    whole = read(model, ids)[0]
    cache = model.empty_cache(2, 24)
    places = jnp.broadcast_to(jnp.arange(24), (2, 24))
    hidden, cache = decode(model, ids[:, :20], places[:, :20], cache)
    np.testing.assert_allclose(hidden, whole[:, :20], atol=1e-5)
    for place in range(20, 24):
        at = slice(place, place + 1)
        hidden, cache = decode(model, ids[:, at], places[:, at], cache)
        np.testing.assert_allclose(hidden, whole[:, at], atol=1e-5)


def test_the_statistics_are_stacked_over_layers(model):
    stats = read(model, tokens(0))[1]
    assert stats["assignments"].shape == (2, 4)
    np.testing.assert_array_equal(stats["assignments"].sum(-1), 2 * 24 * 2)
    np.testing.assert_array_equal(stats["valid"], 2 * 24)


def test_the_parameter_count_is_that_of_the_arrays():
    config = dataclasses.replace(TINY, num_shared_experts=2)
    model = Transformer(config, VOCAB, jax.random.key(0))
    arrays = sum(leaf.size for leaf in jax.tree.leaves(model))
    count = config.parameters(VOCAB)
    assert count.total == arrays - router_bias(model).size
    idle = config.num_layers * 2 * 3 * config.hidden_dim * config.expert_dim
    assert count.active == count.total - idle
