"""FLOPs and parameters equal a count by hand, and what the compiler counts (USER-REPORTS C5)."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

from marin_dagster.models.config import MoEConfig
from marin_dagster.models.dense import DenseConfig

VOCAB = 1000
MOE = MoEConfig(
    hidden_dim=64,
    num_layers=5,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    expert_dim=32,
    num_experts=8,
    num_experts_per_token=2,
    num_shared_experts=1,
    seq_len=100,
)
DENSE = DenseConfig(
    hidden_dim=128,
    num_layers=2,
    num_heads=2,
    num_kv_heads=1,
    head_dim=64,
    intermediate_dim=384,
    seq_len=64,
)


def by_hand(config: MoEConfig, inner: int) -> float:
    """Six times the multiplications of one token: two FLOPs each, and the way back costs double."""
    projections = 64 * 64 + 64 * 32 + 64 * 32 + 64 * 64  # query, key, value, out
    router = 64 * 8  # all 8 scores
    experts = 2 * 3 * inner * 32  # two of eight: gate, up, down
    shared = 3 * 64 * 32
    latent = 2 * 64 * inner if inner != 64 else 0
    head = 64 * VOCAB  # the lookup of the embedding multiplies nothing
    seen = 0.0  # keys per query, over the layers, from the masks themselves
    for layer in range(5):
        window = None if layer in (3, 4) else config.sliding_window
        places = range(config.seq_len)
        seen += sum(min(place + 1, window or 100) for place in places) / config.seq_len
    scores_and_mix = 2 * 4 * 16 * seen
    return 2 * 3 * (5 * (projections + router + experts + shared + latent) + head + scores_and_mix)


@pytest.mark.parametrize("window", [None, 10])
@pytest.mark.parametrize("latent", [None, 16])
def test_flops_equal_a_count_by_hand(window, latent):
    config = dataclasses.replace(MOE, sliding_window=window, expert_latent_dim=latent)
    assert config.flops_per_token(VOCAB) == pytest.approx(by_hand(config, latent or 64), rel=0.01)


def test_flops_grow_with_active_experts_and_not_with_all():
    more = dataclasses.replace(MOE, num_experts=64)
    router = 6 * 5 * 64 * 56
    assert more.flops_per_token(VOCAB) == MOE.flops_per_token(VOCAB) + router
    active = dataclasses.replace(MOE, num_experts_per_token=4)
    expert = 6 * 5 * 2 * 3 * 64 * 32
    assert active.flops_per_token(VOCAB) == MOE.flops_per_token(VOCAB) + expert


def test_longer_rows_cost_their_attention():
    extra = MOE.flops_per_token(VOCAB, 300) - MOE.flops_per_token(VOCAB)
    assert extra == 6 * 5 * 4 * 16 * 200


def test_the_compiler_counts_the_same_for_a_dense_model():
    model = jax.eval_shape(lambda: DENSE.make(VOCAB, jax.random.key(0)))
    ids = jax.ShapeDtypeStruct((2, 64), jnp.int32)
    forward = jax.jit(lambda model, ids: model.logits(model(ids)[0]))
    found = forward.lower(model, ids).compile().cost_analysis()["flops"]
    # A row this short is one chunk, whose masked half is computed too.
    masked = 2 * 2 * 2 * 64 * 32 * DENSE.num_layers
    assert found / 128 == pytest.approx(DENSE.flops_per_token(VOCAB) / 3 + masked, rel=0.04)
    assert found / 128 > DENSE.flops_per_token(VOCAB) / 3


@pytest.mark.parametrize(
    "config", [DENSE, MOE, dataclasses.replace(MOE, expert_latent_dim=16, num_shared_experts=2)]
)
def test_the_parameter_count_is_that_of_the_arrays(config):
    model = jax.eval_shape(lambda: config.make(VOCAB, jax.random.key(0)))
    arrays = sum(leaf.size for leaf in jax.tree.leaves(model))
    biases = 0 if config is DENSE else 5 * 8
    assert config.parameters(VOCAB).total == arrays - biases
