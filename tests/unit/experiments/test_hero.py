import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from marin_dagster.experiments import collect, hero
from marin_dagster.models.sharding import AXES, ROWS, parameter_spec
from marin_dagster.models.stack import Execution, execution
from marin_dagster.show import cost_line

CONFIG = hero.model(hero.HERO)
TOKENS = 390_251 * 46_137_344


@pytest.fixture(scope="module")
def recipes():
    return collect([("hero", hero)])


def test_the_hero_has_535_billion_parameters_of_which_23_are_active():
    count = CONFIG.parameters(hero.VOCAB_SIZE)
    assert count.total == pytest.approx(535.3e9, rel=1e-3)
    assert CONFIG.matrices_in_layers == pytest.approx(22.76e9, rel=1e-3)


def test_the_hero_costs_what_was_published(recipes):
    cost = recipes["checkpoints/hero@2026.11.30"].cost({})
    assert cost["tokens"] == TOKENS
    # Published with whole attention maps; ours counts what the masks let through, 2 % less.
    published = CONFIG.unmasked_flops_per_token(hero.VOCAB_SIZE) * TOKENS
    assert published == pytest.approx(2.70e24, rel=0.01)
    assert cost["flops"] == pytest.approx(published - 12 * 6144 * (36 * 512 + 12 * 2048) * TOKENS)


def test_a_plan_tells_the_cost_in_plain_units(recipes):
    cost = recipes["checkpoints/hero@2026.11.30"].cost({})
    assert cost_line(cost) == "18T tokens, 2.66e24 FLOPs"


def test_the_hero_trains_with_the_published_rates():
    found = hero.optimizer(hero.HERO)
    assert found.adam_learning_rate == 7.594e-4
    assert found.learning_rate == 3.291e-3
    assert found.epsilon == pytest.approx(6.04e-15, rel=1e-3)


def test_the_mixture_changes_when_it_did(recipes):
    run = recipes["checkpoints/hero@2026.11.30"]
    assert [stage.from_step for stage in run.stages] == [108_000, 312_192]
    for data in (run.data, *(stage.data for stage in run.stages)):
        assert sum(weight for _, weight in data) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("rung", "tokens", "active", "total", "flops"),
    [  # MARIN's table: tokens, active and all parameters, FLOPs
        (hero.LADDER[0], 48e9, 61e6, 1.6e9, 5.5e19),
        (hero.LADDER[1], 128e9, 162e6, 4.0e9, 2.7e20),
        (hero.LADDER[2], 381e9, 481e6, 11.5e9, 1.8e21),
        (hero.LADDER[3], 926e9, 1.2e9, 27.7e9, 9.2e21),
    ],
    ids=[rung.name for rung in hero.LADDER],
)
def test_the_ladder_is_near_its_table(rung, tokens, active, total, flops):
    config = hero.model(rung)
    read = rung.num_steps * rung.batch_size * hero.ROW
    assert read == pytest.approx(tokens, rel=0.01)
    assert config.matrices_in_layers == pytest.approx(active, rel=0.03)
    assert config.parameters(hero.VOCAB_SIZE).total == pytest.approx(total, rel=0.03)
    assert config.unmasked_flops_per_token(hero.VOCAB_SIZE) * read == pytest.approx(flops, rel=0.05)


def test_the_hero_lowers_forward_and_backward_on_a_mesh_of_its_size():
    """Two of its twelve periods of four layers, scanned, at full width and batch: no array is made.

    The other layers are the same four again; the time of all 48 is that of making their shapes.
    """
    mesh = AbstractMesh((11, 1, 64, 1, 1), AXES, axis_types=(AxisType.Auto,) * len(AXES))
    two = dataclasses.replace(CONFIG, num_layers=8)
    shapes = eqx.filter_eval_shape(two.make, hero.VOCAB_SIZE, jax.random.key(0))

    def place(path, leaf):
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        spec = parameter_spec(name, leaf.shape, mesh.shape)
        sharding = NamedSharding(mesh, spec)
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    model = jax.tree_util.tree_map_with_path(place, shapes)
    rows = NamedSharding(mesh, PartitionSpec(ROWS))
    ids = jax.ShapeDtypeStruct((hero.HERO.batch_size, hero.ROW), jnp.int32, sharding=rows)

    def loss(model, ids):
        return (model(ids)[0] ** 2).mean()

    with jax.sharding.use_abstract_mesh(mesh), execution(Execution(scan=True, remat=True)):
        traced = jax.jit(jax.grad(loss)).trace(model, ids)
        text = traced.lower(lowering_platforms=("cuda",)).as_text()
    assert "mhlo.num_partitions = 704" in text
    assert "tensor<2x384x3072x6144xf32>" in text  # one place's experts in both periods
