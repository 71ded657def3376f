import os
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from marin_dagster.recipe import StageError
from marin_dagster.training import points
from marin_dagster.training.checkpoint import Saver

OURS = "0123456789abcdef"


def state(value: float) -> dict:
    return {
        "model": {"gate": jnp.full((4, 6), 1.0 * value), "up": jnp.full((4, 6), value + 0.5)},
        "scale": jnp.asarray(value, jnp.bfloat16),
        "nothing": None,
        "count": jnp.asarray(int(value), jnp.int32),
    }


def saver(*roots: Path, identity: str = OURS, said: list[str] | None = None) -> Saver:
    return Saver([str(root) for root in roots], identity, (said if said is not None else []).append)


def save(root: Path, *steps: int, identity: str = OURS, attempt: int = 1, lineage=None) -> None:
    with saver(root, identity=identity) as writer:
        writer.attempt = attempt
        writer.lineage = lineage or []
        for step in steps:
            writer.save(step, state(step), {"cursor": step})


def folder(root: Path, step: int, attempt: int = 1) -> Path:
    return Path(points.Place.of(str(root), step, attempt).folder)


def chunk(root: Path, step: int) -> Path:
    """The largest file with array data."""
    files = folder(root, step).rglob("d/*")
    return max(files, key=lambda path: path.stat().st_size)


def steps(root: Path) -> list[int]:
    return [place.step for place in points.places([str(root)])]


def assert_is(restored, value: float) -> None:
    want = state(value)
    assert jax.tree.structure(restored.state) == jax.tree.structure(want)
    for got, leaf in zip(jax.tree.leaves(restored.state), jax.tree.leaves(want), strict=True):
        assert got.dtype == leaf.dtype
        np.testing.assert_array_equal(np.float32(got), np.float32(leaf))


def test_a_saved_state_equals_its_reload_though_its_memory_was_reused_meanwhile(tmp_path):
    double = jax.jit(lambda tree: jax.tree.map(lambda x: x * 2, tree), donate_argnums=0)
    current = state(3.0)
    with saver(tmp_path) as writer:
        writer.save(7, current, {"cursor": {"web": 12}})
        for _ in range(3):
            current = double(current)
    found = saver(tmp_path).restore(state(0.0))
    assert (found.step, found.attempt, found.facts) == (7, 1, {"cursor": {"web": 12}})
    assert_is(found, 3.0)


def test_the_newest_point_that_verifies_is_found_over_all_roots(tmp_path):
    """Of 10, 20, 25 and 30, the last is damaged and 20 has lost its manifest."""
    here, there, said = tmp_path / "here", tmp_path / "there", []
    save(here, 20, 30)
    save(there, 10, 25)
    os.truncate(chunk(here, 30), 20)
    (folder(here, 20) / points.MANIFEST).unlink()
    with saver(here, there, said=said) as reader:
        assert_is(found := reader.restore(state(0.0)), 25.0)
        assert found.step == 25
        assert len(said) == 1
        assert "5 steps lost because" in said[0]
        assert "has a damaged state/" in said[0]
        for step in (35, 40, 45):
            reader.save(step, state(step), {})
        reader.wait()
    assert 20 in steps(here)  # nobody can tell whose it is
    assert steps(there) == [25, 10]


@pytest.mark.parametrize("name", ["facts.json", "manifest.json", "state/_METADATA"])
@pytest.mark.parametrize("how", ["flip", "remove"])
def test_no_damaged_file_goes_unnoticed(tmp_path, name, how):
    save(tmp_path, 10, 20)
    path = folder(tmp_path, 20) / name
    if how == "flip":
        text = bytearray(path.read_bytes())
        text[len(text) // 2] ^= 1
        path.write_bytes(text)
    else:
        path.unlink()
    assert saver(tmp_path).restore(state(0.0)).step == 10


def test_every_difference_of_names_shapes_and_types_is_listed_and_nothing_is_guessed(tmp_path):
    save(tmp_path, 10)
    like = state(0.0)
    like["model"]["gate_up"] = like["model"].pop("gate")
    like["model"]["up"] = like["model"]["up"].T
    like["scale"] = jnp.zeros((), jnp.float32)
    with pytest.raises(StageError) as caught:
        saver(tmp_path).restore(like)
    assert caught.value.reason == "bad_input"
    for part in (
        "missing: model.gate_up",
        "unknown: model.gate",
        "model.up is float32[4, 6], this run wants float32[6, 4]",
        "scale is bfloat16[], this run wants float32[]",
    ):
        assert part in caught.value.message


def test_two_fields_of_one_shape_that_change_places_keep_their_values(tmp_path):
    save(tmp_path, 10)
    like = state(0.0)
    like["model"] = {"up": like["model"]["up"], "gate": like["model"]["gate"]}
    found = saver(tmp_path).restore(like).state["model"]
    assert (float(found["gate"][0, 0]), float(found["up"][0, 0])) == (10.0, 10.5)


def test_points_of_another_recipe_are_neither_read_nor_removed(tmp_path):
    said: list[str] = []
    save(tmp_path, 50, identity="another")
    with saver(tmp_path, said=said) as writer:
        assert writer.restore(state(0.0)) is None
        for step in (10, 20, 30):
            writer.save(step, state(step), {})
    assert "another recipe" in said[0]
    assert sorted(steps(tmp_path)) == [20, 30, 50]


def test_temporary_points_go_permanent_ones_stay_and_drafts_are_swept(tmp_path):
    here, there = tmp_path / "here", tmp_path / "there"
    (here / ".step-00000005-attempt-0001").mkdir(parents=True)
    with saver(here, there) as writer:
        for step in (10, 20, 30, 40):
            writer.save(step, state(step), {}, permanent=step == 20)
    assert sorted(os.listdir(here)) == [folder(here, step).name for step in (30, 40)]
    assert steps(there) == [20]
    assert saver(here, there).restore(state(0.0)).step == 40


def test_a_later_attempt_does_not_return_to_what_it_left_behind(tmp_path):
    """Attempt 2 went back to step 10, because attempt 1 had gone wrong before its step 30."""
    save(tmp_path, 10, 30)
    save(tmp_path, 15, attempt=2, lineage=[[1, 0], [2, 10]])
    assert [(place.attempt, place.step) for place in points.places([str(tmp_path)])] == [
        (2, 15),
        (1, 10),
    ]
    reader = saver(tmp_path)
    assert reader.restore(state(0.0)).step == 15
    assert reader.attempt == 3
    assert reader.restore(state(0.0), before=15).step == 10
    assert reader.lineage == []


def test_what_was_left_behind_in_another_root_is_not_fallen_back_to(tmp_path):
    here, there = tmp_path / "here", tmp_path / "there"
    save(there, 10, 30)
    save(here, 15, attempt=2, lineage=[[1, 0], [2, 10]])
    (folder(here, 15, 2) / points.FACTS).unlink()
    assert saver(here, there).restore(state(0.0)).step == 10


def break_disk_at(step: int, monkeypatch) -> None:
    publish = points.publish

    def refuse(place, *rest):
        if place.step == step:
            raise OSError("no space left on device")
        publish(place, *rest)

    monkeypatch.setattr(points, "publish", refuse)


def test_a_failed_write_surfaces_at_the_next_step_and_names_the_last_durable_one(
    tmp_path, monkeypatch
):
    break_disk_at(10, monkeypatch)
    with saver(tmp_path) as writer:
        writer.save(5, state(5), {})
        writer.save(10, state(10), {})
        writer._pool.submit(lambda: None).result()  # the write before has ended
        with pytest.raises(StageError, match=r"no space left.*last durable step is 5"):
            writer.check()
    assert steps(tmp_path) == [5]


def test_a_failed_last_write_fails_the_run(tmp_path, monkeypatch):
    break_disk_at(10, monkeypatch)
    with pytest.raises(StageError, match="could not be written"), saver(tmp_path) as writer:
        writer.save(10, state(10), {})


def test_a_folder_that_cannot_be_written_is_an_error_that_says_so(tmp_path):
    with saver(tmp_path / "root") as writer:
        shutil.rmtree(tmp_path / "root")
        (tmp_path / "root").write_text("a file")
        writer.save(10, state(10), {})
        with pytest.raises(StageError, match="could not be written"):
            writer.wait()


def test_an_address_is_no_root(tmp_path):
    with pytest.raises(ValueError, match="mount the bucket"):
        Saver(["gs://bucket/root"], OURS, print)


ON_DEVICES = """
import sys, jax, numpy as np, jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec as P
from marin_dagster.training.checkpoint import Saver
full = np.arange(64 * 8, dtype=np.float32).reshape(64, 8)
def tree(devices, value):
    mesh = jax.make_mesh((devices,), ("data",), devices=jax.devices()[:devices])
    w, b = NamedSharding(mesh, P("data")), NamedSharding(mesh, P())
    step = jnp.zeros((), jnp.int32)
    return {"w": jax.device_put(value, w), "b": jax.device_put(value[0], b), "step": step}
with Saver([sys.argv[1]], "x", print) as saver:
    saver.save(3, tree(8, full), {})
    for devices in (4, 1):
        like = tree(devices, np.zeros_like(full))
        found = saver.restore(like).state
        np.testing.assert_array_equal(found["w"], full)
        np.testing.assert_array_equal(found["b"], full[0])
        assert found["w"].sharding == like["w"].sharding
        assert len(found["w"].sharding.device_set) == devices
        jax.jit(lambda t: t["w"] + t["b"] + t["step"])(found)  # all on devices that agree
print("well")
"""


def test_a_state_of_eight_devices_is_restored_on_four_and_on_one(tmp_path):
    found = subprocess.run(
        [sys.executable, "-c", ON_DEVICES, str(tmp_path)],
        env={**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=8"},
        capture_output=True,
        text=True,
    )
    assert found.stdout.endswith("well\n"), found.stderr
