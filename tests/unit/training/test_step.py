import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from marin_dagster.models.moe import MoE
from marin_dagster.models.router import router_bias, with_router_bias
from marin_dagster.models.transformer import Transformer
from marin_dagster.recipe import Devices
from marin_dagster.training.balance import Balance
from marin_dagster.training.mesh import on_mesh
from marin_dagster.training.optimizer import AdamW
from marin_dagster.training.router_metrics import router_metrics
from marin_dagster.training.schedule import WarmupStableDecay
from marin_dagster.training.step import (
    Whole,
    _Losses,
    balanced,
    initial_state,
    make_step,
)
from tests.unit.models.test_layers import TINY

VOCAB, ROWS = 30, 8
OPTIMIZER = AdamW(learning_rate=1e-2, schedule=WarmupStableDecay(warmup_steps=1, decay_steps=1))
LENGTHS = (24, 3, 24, 11, 24, 24, 0, 17)  # tokens in each row: the rest is padding
AUXILIARY = Balance(
    load_balance_loss_weight=0.3, sequence_balance_loss_weight=0.2, router_z_loss_weight=0.1
)
SPLITS = pytest.mark.parametrize("parts", [2, 4])
KEY = jax.random.key(5)


def batch(rows: int = ROWS) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    there = np.arange(TINY.seq_len) < np.asarray(LENGTHS)[:rows, None]
    return {
        "tokens": rng.integers(0, VOCAB, (rows, TINY.seq_len), dtype=np.int32),
        "targets": rng.integers(0, VOCAB, (rows, TINY.seq_len), dtype=np.int32),
        "loss_weights": there.astype(np.float32),
        "segment_ids": np.where(there, 0, -1).astype(np.int32),
    }


@pytest.fixture(scope="module")
def model() -> Transformer:
    return made(dataclasses.replace(TINY, num_layers=1))


@pytest.fixture(scope="module")
def deep() -> Transformer:
    return made(TINY)


def made(config) -> Transformer:
    plain = Transformer(config, VOCAB, jax.random.key(0))
    shape = (config.num_layers, config.num_experts)
    return with_router_bias(plain, 0.1 * jax.random.normal(jax.random.key(1), shape))


def gradients(model, parts: int, **placement):
    losses = _Losses(0.1, AUXILIARY)
    take = eqx.filter_jit(lambda model, rows: losses.gradients(model, rows, KEY, parts))
    with on_mesh(None, Devices(**placement)):
        return take(model, batch())


def assert_close(one, other, atol: float) -> None:
    for (path, got), want in zip(
        jax.tree_util.tree_leaves_with_path(one), jax.tree.leaves(other), strict=True
    ):
        np.testing.assert_allclose(got, want, atol=atol, rtol=1e-5, err_msg=str(path))


@pytest.fixture(scope="module")
def whole(model):
    return gradients(model, 1)


@SPLITS
def test_neither_losses_nor_gradients_depend_on_micro_batches(model, whole, parts):
    """Rows of unequal length and a row of padding: a mean of means would differ."""
    sums, grads = gradients(model, parts)
    assert_close(sums, whole[0], 1e-6)
    assert_close(grads, whole[1], 1e-6)
    np.testing.assert_array_equal(sums["histogram"], whole[0]["histogram"])


def test_rematerialised_layers_have_the_same_gradients(model, whole):
    sums, grads = gradients(model, 2, remat="block")
    assert_close(sums, whole[0], 1e-6)
    assert_close(grads, whole[1], 1e-6)


def test_the_reported_cross_entropy_is_free_of_auxiliary_losses(model, whole):
    plain = sums_of(model, Balance())[1]
    assert float(whole[0]["cross_entropy"]) == pytest.approx(
        float(plain["cross_entropy"]), rel=1e-6
    )
    assert float(whole[0]["loss"]) > float(plain["loss"]) + 0.1
    z = float(plain["cross_entropy"] + 0.1 * plain["z_loss"])
    assert float(plain["loss"]) == pytest.approx(z, rel=1e-6)


@pytest.mark.parametrize(
    "name",
    ["load_balance_loss_weight", "sequence_balance_loss_weight", "router_z_loss_weight"],
)
def test_an_auxiliary_loss_is_what_its_formula_says(deep, name):
    """In the plain words of the papers, from the logits of each layer, over the valid tokens."""
    rows = batch()
    with_loss, plain = (sums_of(deep, how)[0] for how in (Balance(**{name: 1.0}), Balance()))
    assert float(with_loss - plain) == pytest.approx(by_hand(deep, rows, name), rel=1e-4)


def sums_of(model, balance: Balance):
    """The loss and the sums of a forward pass."""
    losses = _Losses(0.1, balance)
    rows = {name: jnp.asarray(array) for name, array in batch().items()}
    there = jnp.sum(rows["segment_ids"] >= 0).astype(jnp.float32)
    whole = Whole(jnp.sum(rows["loss_weights"]), there, None)
    return eqx.filter_jit(lambda model: losses.value(model, rows, whole, KEY))(model)


@eqx.filter_jit
def router_logits(model, tokens, segments):
    x, logits = model.embedding[tokens], []
    for layer in model.layers:
        inner = x + layer.attention(layer.attention_norm(x), segments)
        logits.append(layer.moe_norm(inner) @ layer.moe.router.weight)
        x = layer(x, segments)[0]
    return logits


def by_hand(model, rows, name: str) -> float:
    there = rows["segment_ids"] >= 0
    every = router_logits(model, rows["tokens"], rows["segment_ids"])
    total = 0.0
    for layer, logits in zip(model.layers, np.asarray(every, np.float64), strict=True):
        scores = 1 / (1 + np.exp(-logits))
        chosen = np.argsort(-(scores + np.asarray(layer.moe.router.bias)))[..., :2]
        picked = np.eye(4)[chosen].sum(-2)
        if name == "router_z_loss_weight":
            total += (np.log(np.exp(logits).sum(-1)) ** 2)[there].mean()
        elif name == "load_balance_loss_weight":
            softmax = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
            share = picked[there].sum(0) / picked[there].sum()
            total += 4 * (share * softmax[there].mean(0)).sum()
        else:
            normalised = scores / scores.sum(-1, keepdims=True)
            for row in range(ROWS):
                here = there[row]
                if here.any():
                    share = picked[row][here].mean(0) * 4 / 2
                    loss = (share * normalised[row][here].mean(0)).sum()
                    total += loss * here.sum() / there.sum()
    return total


def one_step(model, balance: Balance):
    step = make_step(OPTIMIZER, 10, 1e-4, balance)
    copy = jax.tree.map(lambda leaf: jnp.array(leaf) if eqx.is_array(leaf) else leaf, model)
    return step(initial_state(copy, OPTIMIZER, 10), batch())


def test_the_next_bias_balances_the_whole_batch(deep):
    """Each layer its own, and equal histograms, however the batch is split, have the same."""
    sums = sums_of(deep, Balance())[1]
    bias = router_bias(balanced(deep, sums))
    assert float(jnp.abs(bias - router_bias(deep)).max()) > 1e-3
    again = sums_of(with_router_bias(deep, bias), Balance())[1]["assignments"][0]
    before = sums["assignments"][0]
    assert float(again.max() / again.mean()) < float(before.max() / before.mean())


def test_without_quantile_balancing_the_bias_stays_and_updates_are_what_moved(model):
    state, metrics = one_step(model, Balance(quantile=False))
    np.testing.assert_array_equal(router_bias(state.model), router_bias(model))
    pair = (eqx.filter(tree, eqx.is_array) for tree in (state.model, model))
    moved = jax.tree.leaves(jax.tree.map(lambda after, before: after - before, *pair))
    norm = np.sqrt(sum(float((leaf**2).sum()) for leaf in moved))
    assert float(metrics["train/update_norm"]) == pytest.approx(norm, rel=1e-3)


def test_the_load_is_that_of_the_worst_layer(deep):
    """One layer has collapsed, the other has not."""
    pushed = with_router_bias(deep, jnp.zeros((2, 4)).at[1, 0].set(5.0).at[1, 1].set(5.0))
    metrics = router_metrics(pushed, sums_of(pushed, Balance())[1])
    assert float(metrics["moe/max_load_ratio"]) == pytest.approx(2.0)
    assert float(metrics["moe/min_load_ratio"]) == 0.0
    assert float(metrics["moe/routing_entropy"]) == pytest.approx(0.5)
    assert float(metrics["moe/bias_range"]) == 5.0


def test_capacity_counts_drops_exactly_and_refuses_micro_batches():
    config = dataclasses.replace(TINY, num_layers=1, capacity_factor=0.5)
    tight = Transformer(config, VOCAB, jax.random.key(0))
    sums = sums_of(tight, Balance())[1]
    valid = sum(LENGTHS)
    assert float(sums["assignments"].sum()) == valid * 2  # counted before any is dropped
    assert float(sums["dropped"][0]) >= valid - 4  # about half of all, at least
    metrics = router_metrics(tight, sums)
    share = float(sums["dropped"][0]) / (valid * 2)
    assert float(metrics["moe/dropped"]) == pytest.approx(share)
    assert float(metrics["moe/sender_dropped"]) == 0.0
    with pytest.raises(ValueError, match="a capacity is over the whole batch"):
        gradients(tight, 2)


def test_micro_batches_that_do_not_divide_the_rows_are_refused(model):
    with pytest.raises(ValueError, match="batch_size=8 is not divisible by micro_batches=3"):
        gradients(model, 3)


def test_a_weight_that_is_no_weight_is_refused():
    with pytest.raises(ValueError, match="router_z_loss_weight=-1"):
        Balance(router_z_loss_weight=-1)


def loads_of(steps: int, rows: int) -> list[float]:
    """Trains a layer of 64 experts to copy tokens that all lean towards three of them.

    Returns the largest load over the mean by step; quantile balancing alone works against it.
    """
    config = dataclasses.replace(TINY, num_experts=64, num_experts_per_token=4, num_layers=1)
    start = MoE(config, jax.random.key(0))
    towards = 8 * start.router.weight[:, :3].sum(-1)

    @eqx.filter_jit
    def step(moe, key):
        x = jax.random.normal(key, (rows, 256, 16)) + towards
        valid = jnp.ones(x.shape[:2], bool)

        def loss(moe):
            out, sums = moe(x, valid)
            return jnp.mean((out - x) ** 2), sums

        grads, sums = eqx.filter_grad(loss, has_aux=True)(moe)
        moe = eqx.apply_updates(moe, jax.tree.map(lambda grad: -0.1 * grad, grads))
        counts = sums["assignments"]
        return balanced(moe, {"histogram": sums["histogram"][None]}), counts.max() / counts.mean()

    loads, moe = [], start
    for key in jax.random.split(jax.random.key(2), steps):
        moe, load = step(moe, key)
        loads.append(float(load))
    return loads


@pytest.mark.parametrize(
    ("steps", "rows", "limit"), [(60, 8, 1.45), pytest.param(200, 32, 1.25, marks=pytest.mark.slow)]
)
def test_quantile_balancing_alone_evens_64_experts_on_skewed_data(steps, rows, limit):
    """Chance alone makes the largest 1.3 of the mean at 128 tokens per expert, 1.15 at 512."""
    loads = loads_of(steps, rows)
    assert loads[0] > 5  # a few experts take nearly all
    assert max(loads[-10:]) <= limit
