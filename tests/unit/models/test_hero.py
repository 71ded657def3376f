import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from marin_dagster.models.hero import HeroConfig
from marin_dagster.models.hero_model import Hero, HeroAttention, ShortConv, exclude_own
from marin_dagster.models.router import router_bias

VOCAB, ROW = 40, 16
TINY = HeroConfig(
    hidden_dim=16,
    num_layers=2,  # a local and a global one
    num_heads=4,
    num_kv_heads=2,
    global_kv_heads=1,
    head_dim=8,
    expert_dim=8,
    expert_latent_dim=4,
    num_experts=4,
    num_experts_per_token=2,
    num_shared_experts=1,
    sliding_window=5,
    gated_norm_rank=4,
    seq_len=ROW,
)


@pytest.fixture(scope="module")
def model() -> Hero:
    """Random weights in every place, also where training begins at zero or one."""
    plain = TINY.make(VOCAB, jax.random.key(0))
    leaves, tree = jax.tree.flatten(plain)
    keys = jax.random.split(jax.random.key(1), len(leaves))
    noise = [0.1 * jax.random.normal(k, leaf.shape) for k, leaf in zip(keys, leaves, strict=True)]
    return jax.tree.unflatten(tree, [leaf + more for leaf, more in zip(leaves, noise, strict=True)])


@eqx.filter_jit
def read(model: Hero, ids, segments):
    return model(ids, segments)


def tokens(seed: int) -> jax.Array:
    return jax.random.randint(jax.random.key(seed), (2, ROW), 0, VOCAB)


def test_the_future_and_other_documents_do_not_leak(model):
    segments = jnp.asarray([[0] * 7 + [1] * 9] * 2)
    first = tokens(0)
    before = read(model, first, segments)[0]
    later = read(model, first.at[:, 12:].set(tokens(1)[:, 12:]), segments)[0]
    np.testing.assert_allclose(before[:, :12], later[:, :12], atol=1e-6)
    assert float(jnp.abs(before[:, 12:] - later[:, 12:]).max()) > 1e-3
    other = read(model, first.at[:, :7].set(tokens(1)[:, :7]), segments)[0]
    np.testing.assert_allclose(before[:, 7:], other[:, 7:], atol=1e-6)


def test_decoding_equals_reading_the_whole_row(model):
    ids = tokens(0)
    whole = read(model, ids, jnp.zeros_like(ids))[0]
    decode = eqx.filter_jit(lambda *arguments: model.decode(*arguments))
    places = jnp.broadcast_to(jnp.arange(ROW), (2, ROW))
    lengths = jnp.asarray([12, 9])  # rows of a batch of prompts end at different places
    valid = places < lengths[:, None]
    hidden, cache = decode(ids, places, valid, model.empty_cache(2, ROW))
    for row, length in enumerate((12, 9)):
        np.testing.assert_allclose(hidden[row, :length], whole[row, :length], atol=1e-5)
    for turn in range(3):
        place = (lengths + turn)[:, None]
        token = jnp.take_along_axis(ids, place, axis=1)
        hidden, cache = decode(token, place, jnp.ones_like(place, bool), cache)
        want = jnp.take_along_axis(whole, place[:, :, None], axis=1)
        np.testing.assert_allclose(hidden, want, atol=1e-5)


def test_the_loss_falls():
    model = TINY.make(VOCAB, jax.random.key(0))
    ids = tokens(0)

    @eqx.filter_jit
    def step(model):
        def loss(model):
            scores = jax.nn.log_softmax(model.logits(model(ids)[0]))
            return -jnp.take_along_axis(scores[:, :-1], ids[:, 1:, None], axis=-1).mean()

        value, grads = eqx.filter_value_and_grad(loss)(model)
        return value, eqx.apply_updates(model, jax.tree.map(lambda grad: -0.3 * grad, grads))

    losses = []
    for _ in range(30):
        value, model = step(model)
        losses.append(float(value))
    assert losses[-1] < losses[0] - 1.0


def test_a_short_convolution_reaches_its_size_back_and_no_further():
    conv = eqx.tree_at(lambda tree: tree.weight, ShortConv(4, 3), jnp.full((4, 3), 0.5))
    x = jax.random.normal(jax.random.key(0), (1, 10, 3))
    moved = conv(x.at[:, 4].add(1.0), jnp.zeros((1, 10), int)) - conv(x, jnp.zeros((1, 10), int))
    assert np.abs(np.asarray(moved)).max((0, 2)).nonzero()[0].tolist() == [4, 5, 6, 7]
    # So a part of a row that starts with the three tokens before it is computed right.
    whole = conv(x, jnp.zeros((1, 10), int))
    np.testing.assert_allclose(conv(x[:, 2:], jnp.zeros((1, 8), int))[:, 3:], whole[:, 5:])


def test_a_short_convolution_begins_as_identity_and_stays_in_its_segment():
    x = jax.random.normal(jax.random.key(0), (1, 6, 3))
    segments = jnp.asarray([[0, 0, 0, 1, 1, 1]])
    np.testing.assert_array_equal(ShortConv(4, 3)(x, segments), x)
    conv = eqx.tree_at(lambda tree: tree.weight, ShortConv(4, 3), jnp.full((4, 3), 0.5))
    np.testing.assert_allclose(conv(x, segments)[:, 3:], conv(x[:, 3:], segments[:, 3:]))


def test_nothing_of_the_own_value_is_left():
    mixed, own = jax.random.normal(jax.random.key(0), (2, 3, 4, 8))
    left = exclude_own(mixed, own)
    np.testing.assert_allclose((left * own).sum(-1), 0, atol=1e-5)
    np.testing.assert_array_equal(exclude_own(mixed, jnp.zeros_like(own)), mixed)


def test_global_layers_do_not_know_positions_and_local_ones_turn_half_a_head():
    x = jax.random.normal(jax.random.key(0), (1, 1, 4, 8))
    here, there = jnp.array([[0]]), jnp.array([[9]])
    local, everywhere = (HeroAttention(TINY, layer, jax.random.key(0)) for layer in (0, 1))
    np.testing.assert_array_equal(everywhere._place(x, here), everywhere._place(x, there))
    moved = np.abs(np.asarray(local._place(x, here) - local._place(x, there))).max((0, 1, 2))
    assert (moved[:4] > 1e-3).all()
    assert (moved[4:] == 0).all()


def test_the_parameter_count_is_that_of_the_arrays(model):
    arrays = sum(leaf.size for leaf in jax.tree.leaves(model))
    assert TINY.parameters(VOCAB).total == arrays - router_bias(model).size
    unused = 2 * 16 * 8  # one of two key heads in the global layer
    full = dataclasses.replace(TINY, global_kv_heads=2).parameters(VOCAB)
    assert full.matmul - TINY.parameters(VOCAB).matmul == unused
