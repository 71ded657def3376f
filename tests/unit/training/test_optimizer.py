import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from marin_dagster.models.transformer import Transformer
from marin_dagster.training.optimizer import AdamH, AdamW, Muon, MuonH, decay_mask
from marin_dagster.training.schedule import Linear
from tests.unit.models.test_layers import TINY

FLAT = Linear(warmup_steps=0, final_ratio=1.0)
TWO = {"learning_rate": 0.02, "adam_learning_rate": 0.005, "schedule": FLAT}
ALL = (AdamW(learning_rate=0.02, schedule=FLAT), Muon(**TWO), MuonH(**TWO), AdamH(**TWO))


@pytest.fixture(scope="module")
def model():
    shapes = eqx.filter_eval_shape(Transformer, TINY, 30, jax.random.key(0))
    return eqx.filter(shapes, lambda leaf: isinstance(leaf, jax.ShapeDtypeStruct))


@pytest.fixture(scope="module")
def params():
    rng = np.random.default_rng(0)
    shapes = {
        "embedding": (12, 8),
        "head": (8, 12),
        "layers.0.moe.router.weight": (8, 3),
        "layers.0.moe.router.bias": (3,),
        "layers.0.moe.down": (3, 8, 4),
    }
    return {name: jnp.asarray(rng.normal(size=s), jnp.float32) for name, s in shapes.items()}


def step(config, grads, params):
    """The updates of a first step."""

    @jax.jit
    def first(grads, params):
        transformation = config.make(10)
        return transformation.update(grads, transformation.init(params), params)[0]

    return first(grads, params)


def by_label(config, params) -> dict[str, set[str]]:
    """Names of the parameters of layer 0 and outside the layers, by their group."""
    found: dict[str, set[str]] = {}
    for path, label in jax.tree_util.tree_leaves_with_path(config.labels(params)):
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        if not name.startswith("layers.1."):
            found.setdefault(label, set()).add(name.removeprefix("layers.0."))
    return found


def test_muonh_groups_parameters_as_the_hero_run_does(model):
    assert by_label(MuonH(**TWO), model) == {
        "muonh": {
            *(f"attention.{name}" for name in ("query", "key", "value", "out")),
            *("moe.gate_up", "moe.down", "moe.shared.gate_up", "moe.shared.down"),
        },
        "adamh": {"head"},
        "adam": {
            *("embedding", "norm.weight", "attention_norm.weight", "moe_norm.weight"),
            *("attention.query_norm.weight", "attention.key_norm.weight", "moe.router.weight"),
        },
        "fixed": {"moe.router.bias"},
    }


@pytest.mark.parametrize(
    ("name", "ndim", "group"),
    [
        ("layers.0.attention.gate", 2, "adam"),
        ("layers.0.attention.key_conv.weight", 2, "adam"),
        ("layers.0.attention_norm.down", 2, "muonh"),
        ("layers.0.moe.latent.down", 2, "muonh"),
        ("layers.attention_norm.weight", 2, "adam"),  # gains stacked over layers
        ("layers.moe.gate_up", 4, "muonh"),
    ],
)
def test_gates_gains_and_convolutions_are_adams_and_other_matrices_muonhs(name, ndim, group):
    assert MuonH(**TWO).group_of(name, ndim) == group


@pytest.mark.parametrize("config", ALL, ids=lambda config: type(config).__name__)
def test_the_router_bias_is_never_updated_and_has_no_state(config, params):
    state = jax.eval_shape(config.make(10).init, params)
    names = [
        jax.tree_util.keystr(path, simple=True, separator=".")
        for path, _ in jax.tree_util.tree_leaves_with_path(state)
    ]
    assert [name for name in names if "router.weight" in name]
    assert not [name for name in names if "router.bias" in name]
    updates = step(config, jax.tree.map(jnp.ones_like, params), params)
    np.testing.assert_array_equal(updates["layers.0.moe.router.bias"], 0)
    assert np.abs(updates["layers.0.moe.router.weight"]).min() > 0


@pytest.mark.parametrize("config", ALL, ids=lambda config: type(config).__name__)
def test_every_optimizer_learns_a_linear_map(config):
    target = jax.random.normal(jax.random.key(1), (8, 6))
    start = jax.random.normal(jax.random.key(2), (8, 6))
    params = {"query": start * jnp.linalg.norm(target) / jnp.linalg.norm(start)}
    x = jax.random.normal(jax.random.key(3), (64, 8))

    def loss_of(params):
        return jnp.mean((x @ params["query"] - x @ target) ** 2)

    transformation = dataclasses.replace(config, learning_rate=0.1).make(100)

    def one(carry, _):
        params, state = carry
        loss, grads = jax.value_and_grad(loss_of)(params)
        updates, state = transformation.update(grads, state, params)
        return (optax.apply_updates(params, updates), state), loss

    start = (params, transformation.init(params))
    _, losses = jax.jit(lambda start: jax.lax.scan(one, start, length=100))(start)
    assert losses[-1] < 0.1 * losses[0]


@pytest.mark.parametrize("config", [Muon(**TWO), MuonH(**TWO)], ids=["Muon", "MuonH"])
def test_each_expert_of_a_stack_moves_as_if_it_were_alone(config):
    name, rng = "layers.0.moe.down", np.random.default_rng(0)
    stack = jnp.asarray(rng.normal(size=(3, 6, 4)), jnp.float32)
    grads = jnp.asarray([1.0, 1e-3, 10.0], jnp.float32)[:, None, None] * stack[:, ::-1]
    together = step(config, {name: grads}, {name: stack})
    for expert in range(3):
        alone = step(config, {name: grads[expert]}, {name: stack[expert]})
        np.testing.assert_allclose(together[name][expert], alone[name], rtol=2e-4, atol=1e-6)


def test_muon_updates_have_the_size_of_adamws():
    name, rng = "layers.0.attention.out", np.random.default_rng(0)
    weight, grad = (jnp.asarray(rng.normal(size=(64, 16)), jnp.float32) for _ in range(2))
    updates = step(Muon(**TWO, weight_decay=0.0), {name: grad}, {name: weight})
    size = float(jnp.sqrt(jnp.mean(updates[name] ** 2)))
    assert size == pytest.approx(0.2 * TWO["learning_rate"], rel=0.25)


def test_rates_are_reported_for_both_groups_and_follow_one_schedule():
    config = MuonH(learning_rate=13e-3, adam_learning_rate=3e-3, schedule=Linear(warmup_steps=10))
    early, late = (config.rates_at(step, 100) for step in (4, 55))
    assert set(early) == {"train/learning_rate", "optim/adam_learning_rate"}
    assert float(early["train/learning_rate"]) == pytest.approx(6.5e-3)
    assert float(late["optim/adam_learning_rate"]) == pytest.approx(1.5e-3)
    assert set(ALL[0].rates_at(0, 10)) == {"train/learning_rate"}


def test_only_named_parameters_of_adam_are_decayed(params):
    config = MuonH(**TWO, weight_decay=0.5, decayed=("*router.weight",))
    updates = step(config, jax.tree.map(jnp.zeros_like, params), params)
    router = "layers.0.moe.router.weight"
    np.testing.assert_allclose(updates[router], -0.005 * 0.5 * params[router], rtol=1e-6)
    np.testing.assert_array_equal(updates["embedding"], 0)
    np.testing.assert_allclose(updates["head"], 0, atol=1e-6)


def test_decay_that_would_fall_on_nothing_is_refused(params):
    config = MuonH(**TWO, weight_decay=0.1, decayed=("*moe.down",))
    with pytest.raises(ValueError, match=r"decayed=\('\*moe.down',\) names no parameter of Adam"):
        step(config, params, params)
    with pytest.raises(ValueError, match=r"weight_decay=0.1 and decayed=\(\) do not go together"):
        AdamH(**TWO, weight_decay=0.1)


def test_weight_decay_shrinks_matrices_and_leaves_norms_embeddings_and_biases(model):
    mask = decay_mask(model)
    assert mask.head
    assert mask.layers[0].moe.gate_up
    assert mask.layers[0].attention.query
    assert not mask.embedding
    assert not mask.norm.weight
    assert not mask.layers[0].attention.query_norm.weight
    assert not mask.layers[0].moe.router.bias


def test_a_step_moves_by_the_learning_rate_and_clips_the_gradient():
    config = AdamW(learning_rate=0.1, schedule=FLAT, weight_decay=0.0, max_grad_norm=1.0)
    updates = step(config, {"weight": 1e6 * jnp.ones(4)}, {"weight": jnp.ones(4)})
    np.testing.assert_allclose(updates["weight"], -0.1, rtol=1e-3)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("learning_rate", 0, "learning_rate=0 is not positive"),
        ("adam_learning_rate", -1, "adam_learning_rate=-1 is not positive"),
        ("momentum", 1.0, r"momentum=1\.0 is outside 0 to 1"),
        ("beta2", 1.5, r"beta2=1\.5 is outside"),
        ("epsilon", 0.0, r"epsilon=0\.0 is not positive"),
        ("max_grad_norm", 0.0, r"max_grad_norm=0\.0 is not positive"),
        ("weight_decay", -0.1, r"weight_decay=-0\.1 is negative"),
    ],
)
def test_an_optimizer_says_what_is_wrong_with_a_value(field, value, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(MuonH(**TWO), **{field: value})
