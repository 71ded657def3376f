import json
import os

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from marin_dagster.models.router import router_bias, with_router_bias
from marin_dagster.models.transformer import Transformer
from marin_dagster.recipe import StageError
from marin_dagster.training import checkpoint
from marin_dagster.training.checkpoint import Saver, load_model, restore, save_model
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
    np.testing.assert_array_equal(model(ids)[0], loaded(ids)[0])


def test_tensors_are_found_by_name_and_every_difference_is_listed(model, tmp_path):
    save_model(model, str(tmp_path), {})
    path = os.path.join(tmp_path, checkpoint.MODEL)
    tensors = checkpoint.read_tensors(path)
    tensors["layers.0.moe.gate"] = tensors.pop("layers.0.moe.gate_up")
    tensors["head"] = tensors["head"].T.copy()
    checkpoint.write_tensors(tensors, path)
    with pytest.raises(StageError) as caught:
        load_model(str(tmp_path))
    for part in ("missing: layers.0.moe.gate_up", "unknown: layers.0.moe.gate", "head is float32"):
        assert part in caught.value.message


def test_a_truncated_model_is_a_bad_input(model, tmp_path):
    save_model(model, str(tmp_path), {})
    path = os.path.join(tmp_path, checkpoint.MODEL)
    os.truncate(path, os.path.getsize(path) // 2)
    with pytest.raises(StageError, match="cannot be read"):
        load_model(str(tmp_path))


def test_the_newest_resume_point_that_verifies_is_restored(model, tmp_path):
    folder = str(tmp_path / "resume")
    with Saver(folder) as saver:
        for step in (10, 20):
            marked = with_router_bias(model, jnp.full((2, 4), float(step), jnp.float32))
            saver.save(step, marked, {"count": np.int32(step)})
    os.truncate(os.path.join(folder, "step-00000020", "optimizer.safetensors"), 20)
    messages: list[str] = []
    step, restored, optimizer = restore(
        folder, model, {"count": jax.numpy.int32(0)}, messages.append
    )
    assert step == 10
    assert float(router_bias(restored)[0, 0]) == 10
    assert int(optimizer["count"]) == 10
    assert "20 is skipped" in messages[0]


def test_old_resume_points_go_and_half_written_ones_are_swept(model, tmp_path):
    folder = tmp_path / "resume"
    (folder / ".step-00000005").mkdir(parents=True)
    with Saver(str(folder)) as saver:
        for step in (10, 20, 30):
            saver.save(step, model, {})
    assert sorted(os.listdir(folder)) == ["step-00000020", "step-00000030"]
    manifest = json.loads((folder / "step-00000030" / "manifest.json").read_text())
    assert set(manifest["files"]) == {"model.safetensors", "optimizer.safetensors"}


def failing_at(step: int):
    def write(tensors, path):
        if f"step-{step:08d}" in path:
            raise OSError("no space left on device")
        checkpoint.write_tensors(tensors, path)

    return write


def test_a_failed_write_surfaces_at_the_next_step_and_names_the_last_durable_one(model, tmp_path):
    saver = Saver(str(tmp_path), failing_at(10))
    with saver:
        saver.save(5, model, {})
        saver.save(10, model, {})
        with pytest.raises(StageError, match=r"no space left.*last durable step is 5"):
            saver.wait()
    assert checkpoint.saved_steps(str(tmp_path)) == [5]


def test_a_failed_last_write_fails_the_run(model, tmp_path):
    with (
        pytest.raises(StageError, match="could not be written"),
        Saver(str(tmp_path), failing_at(10)) as saver,
    ):
        saver.save(10, model, {})
