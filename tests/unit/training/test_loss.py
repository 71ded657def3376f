import jax
import jax.numpy as jnp
import numpy as np
import pytest

from marin_dagster.training import loss


def arguments():
    keys = jax.random.split(jax.random.key(0), 4)
    hidden = jax.random.normal(keys[0], (3, 10, 8))
    head = jax.random.normal(keys[1], (8, 17))
    targets = jax.random.randint(keys[2], (3, 10), 0, 17)
    weights = jax.random.bernoulli(keys[3], 0.6, (3, 10)).astype(jnp.float32)
    return hidden, head, targets, weights


def plain(hidden, head, targets, weights, z_loss_weight):
    logits = hidden @ head
    log_sum = jax.nn.logsumexp(logits, axis=-1)
    nll = log_sum - jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    cross_entropy = (nll * weights).sum() / weights.sum()
    return cross_entropy + z_loss_weight * (log_sum**2 * weights).sum() / weights.sum()


def test_the_chunked_loss_equals_the_plain_one_in_value_and_gradient(monkeypatch):
    monkeypatch.setattr(loss, "chunk_tokens", lambda *_: 7)
    hidden, head, targets, weights = arguments()
    grad = jax.jit(jax.value_and_grad(plain, argnums=(0, 1)))
    want, want_grads = grad(hidden, head, targets, weights, 0.1)

    def scaled(hidden, head):
        return 3 * loss.token_loss(hidden, head, targets, weights, 0.1).loss

    got, got_grads = jax.jit(jax.value_and_grad(scaled, argnums=(0, 1)))(hidden, head)
    assert float(got) == pytest.approx(3 * float(want), rel=1e-5)
    for one, other in zip(got_grads, want_grads, strict=True):
        np.testing.assert_allclose(one, 3 * other, rtol=1e-4, atol=1e-5)


def test_the_reported_cross_entropy_is_free_of_the_z_loss():
    hidden, head, targets, weights = arguments()
    with_z = loss.token_loss(hidden, head, targets, weights, 0.5)
    assert float(with_z.cross_entropy) == pytest.approx(
        float(plain(hidden, head, targets, weights, 0.0)), rel=1e-5
    )
    total = with_z.cross_entropy + 0.5 * with_z.z_loss
    assert float(with_z.loss) == pytest.approx(float(total), rel=1e-5)


def test_positions_without_weight_change_nothing():
    hidden, head, targets, weights = arguments()
    noise = jnp.where(weights[..., None] > 0, hidden, 1e3)
    one = loss.token_loss(hidden, head, targets, weights).loss
    other = loss.token_loss(noise, head, (targets * weights).astype(int), weights).loss
    assert float(one) == pytest.approx(float(other), rel=1e-5)


def test_a_large_vocabulary_takes_little_memory():
    """The logits of all tokens would be 2 GiB for a model of a few megabytes."""
    tokens, vocab, hidden_dim = 4096, 131_072, 64
    shapes = [
        jax.ShapeDtypeStruct((8, tokens // 8, hidden_dim), jnp.float32),
        jax.ShapeDtypeStruct((hidden_dim, vocab), jnp.float32),
        jax.ShapeDtypeStruct((8, tokens // 8), jnp.int32),
        jax.ShapeDtypeStruct((8, tokens // 8), jnp.float32),
    ]

    def value(hidden, head, targets, weights):
        return loss.token_loss(hidden, head, targets, weights, 1e-4).loss

    compiled = jax.jit(jax.value_and_grad(value, argnums=(0, 1))).lower(*shapes).compile()
    found = compiled.memory_analysis()
    assert found is not None
    assert found.temp_size_in_bytes < 0.1 * tokens * vocab * 4


def test_chunks_are_small_for_large_vocabularies_and_large_for_wide_heads():
    assert loss.chunk_tokens(8192, 256) == 1024
    assert loss.chunk_tokens(131_072, 64) == 64
    assert loss.chunk_tokens(131_072, 2048) == 1024


def test_the_parts_of_a_batch_add_up_to_the_whole():
    hidden, head, targets, weights = arguments()
    whole = loss.token_loss(hidden, head, targets, weights, 0.1)
    parts = [
        loss.token_loss(
            hidden[i : i + 1], head, targets[i : i + 1], weights[i : i + 1], 0.1, weights.sum()
        )
        for i in range(3)
    ]
    for name in whole._fields:
        added = sum(float(getattr(part, name)) for part in parts)
        assert added == pytest.approx(float(getattr(whole, name)), rel=1e-6)
