import jax
import jax.numpy as jnp
import numpy as np
import pytest

from marin_dagster.models import attention
from marin_dagster.models.attention import causal_attention

BATCH, HEADS, KEY_HEADS, DIM = 2, 4, 2, 8


def arrays(seq_len: int, batch: int = BATCH):
    keys = jax.random.split(jax.random.key(0), 3)
    shapes = [(batch, seq_len, heads, DIM) for heads in (HEADS, KEY_HEADS, KEY_HEADS)]
    return [jax.random.normal(key, shape) for key, shape in zip(keys, shapes, strict=True)]


def documents(seq_len: int) -> jax.Array:
    """Two rows of documents, and padding at the end of one."""
    rows = np.zeros((BATCH, seq_len), np.int32)
    rows[0, seq_len // 3 :] = 1
    rows[1, seq_len // 2 :] = 1
    rows[1, -5:] = -1
    return jnp.asarray(rows)


def naive(queries, keys, values, segments, window):
    """All scores of the row at once, one head after the other."""
    place = jnp.arange(queries.shape[1])
    far = place[:, None] - place[None, :]
    mask = (far >= 0) & (far < (window or far.shape[0]))
    mask = mask & (segments[:, :, None] == segments[:, None, :])
    heads = []
    for head in range(HEADS):
        shared = head // (HEADS // KEY_HEADS)
        scores = jnp.einsum("bqc,bkc->bqk", queries[:, :, head], keys[:, :, shared]) / DIM**0.5
        weights = jax.nn.softmax(jnp.where(mask, scores, -jnp.inf), axis=-1)
        heads.append(jnp.einsum("bqk,bkc->bqc", weights, values[:, :, shared]))
    return jnp.concatenate(heads, axis=-1)


@pytest.mark.parametrize("long_row", [1024, 32])
@pytest.mark.parametrize("window", [None, 1, 12, 40])
def test_chunks_equal_all_scores_at_once(monkeypatch, long_row, window):
    monkeypatch.setattr(attention, "LONG_ROW", long_row)
    monkeypatch.setattr(attention, "QUERY_CHUNK", 16)
    monkeypatch.setattr(attention, "PARTS", 2)
    qkv, segments = arrays(60), documents(60)

    def run(function):
        def total(*qkv):
            out = function(*qkv, segments, window)
            return (out * jnp.sin(jnp.arange(out.size).reshape(out.shape))).sum(), out

        return jax.jit(jax.value_and_grad(total, argnums=(0, 1, 2), has_aux=True))(*qkv)

    with jax.default_matmul_precision("highest"):
        (_, got), grads = run(causal_attention)
        (_, want), wanted = run(naive)
    np.testing.assert_allclose(got, want, atol=1e-6)
    for one, other in zip(grads, wanted, strict=True):
        np.testing.assert_allclose(one, other, atol=2e-6)


def workspace(seq_len: int, window: int | None) -> int:
    """Bytes beside arguments and results of one forward and backward pass."""

    def total(*qkv):
        return causal_attention(*qkv, jnp.zeros((1, seq_len), jnp.int32), window).sum()

    compiled = jax.jit(jax.grad(total, argnums=(0, 1, 2))).lower(*arrays(seq_len, 1)).compile()
    return compiled.memory_analysis().temp_size_in_bytes


def test_memory_grows_with_the_row_and_not_with_its_square(monkeypatch):
    monkeypatch.setattr(attention, "PARTS", 2)
    for window in (None, 256):
        assert workspace(16384, window) < 2.5 * workspace(8192, window)
    assert workspace(16384, None) < 16384 * 16384  # a quarter of one head's scores


def dots(seq_len: int, window: int | None) -> float:
    """Multiplications of the forward pass: those of a chunk times the chunks, from the trace."""
    jaxpr = jax.make_jaxpr(
        lambda *qkv: causal_attention(*qkv, jnp.zeros((1, seq_len), jnp.int32), window)
    )(*arrays(seq_len, 1))
    return count_dots(jaxpr.jaxpr)


def count_dots(jaxpr) -> float:
    total = 0.0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            inner = np.prod([equation.invars[0].aval.shape[axis] for axis in contracted])
            total += inner * np.prod(equation.outvars[0].aval.shape)
        times = equation.params.get("length", 1) if equation.primitive.name == "scan" else 1
        for inner in jax.core.jaxprs_in_params(equation.params):
            total += times * count_dots(inner)
    return total


def test_a_window_costs_row_times_window():
    pair = 2 * HEADS * DIM  # multiplications per query and key: the score and the mix
    for seq_len in (1024, 4096, 16384):
        assert dots(seq_len, 1024) <= 1.3 * pair * seq_len * 1024
    assert dots(16384, None) <= 1.15 * pair * 16384 * 16384 / 2
