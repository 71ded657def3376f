import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from marin_dagster.models import attention as attention_module
from marin_dagster.models import layers
from marin_dagster.models.config import MoEConfig

TINY = MoEConfig(
    hidden_dim=16,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    expert_dim=8,
    num_experts=4,
    num_experts_per_token=2,
    num_shared_experts=1,
    seq_len=24,
)


def test_chunked_attention_equals_attention_in_one_piece(monkeypatch):
    attention = layers.Attention(TINY, jax.random.key(0))
    x = jax.random.normal(jax.random.key(1), (2, 24, 16))
    segments = jnp.asarray(np.repeat([[0, 1, 2]], 2, axis=0).repeat(8, axis=1))
    whole = eqx.filter_jit(attention)(x, segments)
    monkeypatch.setattr(attention_module, "QUERY_CHUNK", 7)
    chunked = eqx.filter_jit(lambda *args: attention(*args))(x, segments)
    np.testing.assert_allclose(chunked, whole, atol=1e-6)


def test_rotary_scores_depend_on_distance_only():
    q, k = jax.random.normal(jax.random.key(0), (2, 1, 1, 1, 8))

    def score(i: int, j: int) -> float:
        turned = [layers.rope(x, jnp.array([[place]]), 10_000.0) for x, place in ((q, i), (k, j))]
        return float(jnp.vdot(*turned))

    assert score(3, 1) == pytest.approx(score(13, 11), abs=1e-5)
    assert score(3, 1) != pytest.approx(score(3, 2), abs=1e-3)


def test_a_model_config_names_what_does_not_fit():
    with pytest.raises(ValueError, match=r"num_heads=4 is not divisible by num_kv_heads=3"):
        MoEConfig(**{**TINY.__dict__, "num_kv_heads": 3})
    with pytest.raises(ValueError, match=r"num_experts_per_token=4 is not below num_experts=4"):
        MoEConfig(**{**TINY.__dict__, "num_experts_per_token": 4})
