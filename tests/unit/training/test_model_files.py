import os

import equinox as eqx
import jax
import numpy as np
import pytest

from marin_dagster.models.router import router_bias, with_router_bias
from marin_dagster.models.transformer import Transformer
from marin_dagster.recipe import StageError
from marin_dagster.training.model_files import (
    MODEL,
    load_model,
    read_tensors,
    save_model,
    write_tensors,
)
from tests.unit.models.test_layers import TINY


@pytest.fixture(scope="module")
def model() -> Transformer:
    plain = Transformer(TINY, 30, jax.random.key(0))
    return with_router_bias(plain, jax.random.normal(jax.random.key(1), (2, 4)))


def assert_same(one, other):
    assert eqx.tree_equal(one, other)


def test_a_saved_model_equals_its_reload_with_its_router_bias(model, tmp_path):
    save_model(model, str(tmp_path), {"eos_id": 2})
    loaded, config = load_model(str(tmp_path))
    assert config == TINY
    assert_same(model, loaded)
    assert float(np.abs(router_bias(loaded)).max()) > 0
    ids = jax.random.randint(jax.random.key(2), (1, 24), 0, 30)
    hidden = eqx.filter_jit(lambda model: model(ids)[0])
    np.testing.assert_array_equal(hidden(model), hidden(loaded))


def test_tensors_are_found_by_name_and_every_difference_is_listed(model, tmp_path):
    save_model(model, str(tmp_path), {})
    path = os.path.join(tmp_path, MODEL)
    tensors = read_tensors(path)
    tensors["layers.0.moe.gate"] = tensors.pop("layers.0.moe.gate_up")
    tensors["head"] = tensors["head"].T.copy()
    write_tensors(tensors, path)
    with pytest.raises(StageError) as caught:
        load_model(str(tmp_path))
    for part in ("missing: layers.0.moe.gate_up", "unknown: layers.0.moe.gate", "head is float32"):
        assert part in caught.value.message


def test_a_truncated_model_is_a_bad_input(model, tmp_path):
    save_model(model, str(tmp_path), {})
    path = os.path.join(tmp_path, MODEL)
    os.truncate(path, os.path.getsize(path) // 2)
    with pytest.raises(StageError, match="cannot be read"):
        load_model(str(tmp_path))
