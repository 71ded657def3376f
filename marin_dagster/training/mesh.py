"""Turns a mesh's description into devices, and state and batches into arrays divided over them."""

import contextlib
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import equinox as eqx
import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from marin_dagster.models.dispatch import exchange
from marin_dagster.models.sharding import AXES, ROWS, ambient, fitting, parameter_spec
from marin_dagster.models.stack import Execution, execution
from marin_dagster.recipe import Devices, StageError

Tree = TypeVar("Tree")


def mesh_shape(text: str, num_devices: int) -> dict[str, int]:
    """Reads `data=4,expert=2`; an axis that is not named has size one, `data` takes the rest.

    Raises StageError("bad_input") for axes that do not exist or do not fit the devices.
    """
    shape: dict[str, int] = dict.fromkeys(AXES, 1)
    for part in filter(None, text.replace(" ", "").split(",")):
        found = re.fullmatch(r"(\w+)=([1-9]\d*)", part)
        if found is None or found[1] not in AXES:
            raise StageError(
                "bad_input",
                f"MARIN_MESH={text!r}: {part!r} is not AXIS=SIZE with an axis of "
                f"{', '.join(AXES)}; write it as data=4,expert=2",
            )
        shape[found[1]] = int(found[2])
    if not re.search(r"\bdata=", text) and num_devices % math.prod(shape.values()) == 0:
        shape["data"] = num_devices // math.prod(shape.values())
    if math.prod(shape.values()) != num_devices:
        raise StageError(
            "bad_input",
            f"MARIN_MESH={text!r} is a mesh of {math.prod(shape.values())} devices, there are "
            f"{num_devices}; make the product of its sizes {num_devices}",
        )
    return shape


def make_mesh(text: str) -> Mesh | None:
    """Makes the mesh of all devices of all processes; None for a single device."""
    if jax.device_count() == 1:
        mesh_shape(text, 1)
        return None
    shape = mesh_shape(text, jax.device_count())
    return jax.make_mesh(tuple(shape.values()), AXES, (AxisType.Auto,) * len(AXES))


@contextlib.contextmanager
def on_mesh(mesh: Mesh | None, devices: Devices = Devices()) -> Iterator[None]:  # noqa: B008
    """Makes a mesh the ambient one: models and losses divide their work over it, as told.

    Layers that are computed again are scanned: unrolled, XLA finds that it has computed them
    before, and keeps all that was to be forgotten.
    """
    remat = devices.remat == "block"
    how = Execution(scan=devices.scan_layers or remat, remat=remat)
    with contextlib.ExitStack() as stack:
        stack.enter_context(execution(how))
        stack.enter_context(exchange(devices.exchange))
        if mesh is not None:
            stack.enter_context(jax.set_mesh(mesh))
        yield


def shard_state(state: Tree, mesh: Mesh | None) -> Tree:
    """Places the arrays of a train state, by their names; every process holds the same values."""
    if mesh is None:
        return state
    return _map_arrays(state, lambda leaf, spec: _place(leaf, NamedSharding(mesh, spec)), mesh)


def constrain_state(state: Tree) -> Tree:
    """Keeps the arrays of a train state where `shard_state` puts them."""
    mesh = ambient()
    if mesh is None:
        return state
    return _map_arrays(state, jax.lax.with_sharding_constraint, mesh)


def global_batch(batch: Mapping[str, np.ndarray], mesh: Mesh | None) -> Mapping[str, Any]:
    """Makes global arrays of a batch that every process has read: each places what it holds.

    Rows are divided over replica, data and expert, positions over context. Raises
    StageError("bad_input") when they cannot be.
    """
    if mesh is None:
        return batch
    rows, seq_len = batch["tokens"].shape
    _refuse_uneven(rows, seq_len, mesh.shape)
    sharding = NamedSharding(mesh, fitting((ROWS, "context"), (rows, seq_len), mesh.shape))
    return {name: _place(array, sharding) for name, array in batch.items()}


def _refuse_uneven(rows: int, seq_len: int, shape: Mapping[str, int]) -> None:
    devices = math.prod(shape[name] for name in ROWS)
    if rows % devices:
        raise StageError(
            "bad_input",
            f"batch_size={rows} is not divisible by {devices}, the product of the mesh axes "
            f"{', '.join(ROWS)}; change MARIN_MESH or batch_size",
        )
    if seq_len % shape["context"]:
        raise StageError(
            "bad_input",
            f"seq_len={seq_len} is not divisible by context={shape['context']} of MARIN_MESH; "
            "use a divisor",
        )


def _place(array: Any, sharding: NamedSharding) -> jax.Array:
    """Makes a global array of values that every process has, each placing its own parts."""
    if isinstance(array, jax.Array) and not array.is_fully_addressable:
        return jax.device_put(array, sharding)
    host = np.asarray(array)
    return jax.make_array_from_callback(host.shape, sharding, lambda index: host[index])


def _map_arrays(tree: Tree, function: Any, mesh: Any) -> Tree:
    def place(path: Any, leaf: Any) -> Any:
        if not eqx.is_array(leaf):
            return leaf
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        spec: PartitionSpec = parameter_spec(name, leaf.shape, mesh.shape)
        return function(leaf, spec)

    return jax.tree_util.tree_map_with_path(place, tree)
