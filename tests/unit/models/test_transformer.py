import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from marin_dagster.models.dense import DenseConfig
from marin_dagster.models.router import with_router_bias
from marin_dagster.models.transformer import Transformer
from tests.unit.models.test_layers import TINY

VOCAB = 40


# A local and a global layer, with experts at a width of their own.
LOCAL = dataclasses.replace(TINY, sliding_window=6, expert_latent_dim=4)


@pytest.fixture(scope="module")
def model() -> Transformer:
    plain = LOCAL.make(VOCAB, jax.random.key(0))
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


def test_idle_experts_are_not_active():
    count = TINY.parameters(VOCAB)
    idle = TINY.num_layers * 2 * 3 * TINY.hidden_dim * TINY.expert_dim
    assert count.active == count.total - idle


def test_every_fourth_and_the_last_layer_are_global():
    config = dataclasses.replace(TINY, num_layers=6, sliding_window=8)
    assert config.windows == (8, 8, 8, None, 8, None)
    made = jax.eval_shape(lambda: config.make(VOCAB, jax.random.key(0)))
    assert tuple(layer.attention.window for layer in made.layers) == config.windows


def test_a_token_of_a_local_layer_does_not_see_beyond_its_window():
    config = dataclasses.replace(TINY, num_layers=2, sliding_window=6)
    layer = config.make(VOCAB, jax.random.key(0)).layers[0]
    x = jax.random.normal(jax.random.key(1), (1, 24, 16))
    attend = eqx.filter_jit(layer.attention)
    segments = jnp.zeros((1, 24), jnp.int32)
    moved = attend(x.at[:, 10].add(1.0), segments) - attend(x, segments)
    assert np.abs(np.asarray(moved)).max((0, 2)).nonzero()[0].tolist() == [*range(10, 16)]


def test_a_dense_model_has_no_statistics_and_reads_like_it_decodes():
    config = DenseConfig(
        hidden_dim=16,
        num_layers=1,
        num_heads=4,
        num_kv_heads=2,
        head_dim=8,
        intermediate_dim=24,
        seq_len=24,
    )
    model = config.make(VOCAB, jax.random.key(0))
    hidden, stats, _ = read(model, tokens(0))
    assert stats == {}
    places = jnp.broadcast_to(jnp.arange(24), (2, 24))
    np.testing.assert_allclose(
        decode(model, tokens(0), places, model.empty_cache(2, 24))[0], hidden, atol=1e-5
    )
