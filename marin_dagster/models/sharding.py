"""Turns names of parameters into the mesh axes that they are divided over.

The mesh comes from the ambient context (`jax.set_mesh`): without one, or where its axes have
size one, nothing here does anything.
"""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from jax.sharding import PartitionSpec
from jaxtyping import Array

AXES: tuple[str, ...] = ("replica", "data", "expert", "context", "tensor")
ROWS = ("replica", "data", "expert")  # the axes that a batch's rows are divided over

Names = str | tuple[str, ...] | None

# By the end of a parameter's name; the last dimensions of its array, in order. A matrix that
# holds a gate beside its twin is not divided along that dimension: each half would lie apart.
RULES: tuple[tuple[str, tuple[Names, ...]], ...] = (
    (r"embedding", ("tensor", "data")),
    (r"head", ("data", "tensor")),
    (r"attention\.(query|key|value)", ("data", "tensor")),
    (r"attention\.out", ("tensor", "data")),
    (r"moe\.gate_up", ("expert", ("data", "tensor"), None)),
    (r"moe\.down", ("expert", "tensor", "data")),
    (r"gate_up", (("data", "tensor"), None)),
    (r"down", ("tensor", "data")),
    (r"router\.bias", (None,)),
    (r".*", ("data", None)),  # any other matrix
)
_RULES = tuple((re.compile(rf"(.*\.)?{pattern}"), names) for pattern, names in RULES)


def ambient() -> Any:
    """Returns the ambient mesh; None without one, and inside a `shard_map`: arrays are local."""
    mesh = jax.sharding.get_abstract_mesh()
    return None if mesh.empty or mesh.size == 1 or mesh.manual_axes else mesh


def axis_size(name: str) -> int:
    """Devices along an axis of the ambient mesh; 1 without a mesh."""
    mesh = ambient()
    return 1 if mesh is None else mesh.shape.get(name, 1)


def split_axes(spec: PartitionSpec) -> tuple[str, ...]:
    """Lists the mesh axes that a spec names."""
    entries = ((entry,) if isinstance(entry, str) else entry or () for entry in spec)
    return tuple(name for names in entries for name in names)


def constrain(x: Array, *dims: Names) -> Array:
    """Asks that the dimensions of an array be divided over axes of the ambient mesh.

    Dimensions that the axes do not divide are not.
    """
    mesh = ambient()
    if mesh is None:
        return x
    return jax.lax.with_sharding_constraint(x, fitting(dims, x.shape, mesh.shape))


def parameter_spec(name: str, shape: Sequence[int], mesh_shape: Mapping[str, int]) -> PartitionSpec:
    """Says how the parameter of this dotted name, or a moment of it, is divided."""
    if len(shape) < 2:
        return PartitionSpec()
    dims = next(dims for pattern, dims in _RULES if pattern.fullmatch(name))
    dims = (None,) * (len(shape) - len(dims)) + dims[max(0, len(dims) - len(shape)) :]
    return fitting(dims, shape, mesh_shape)


def fitting(
    dims: Sequence[Names], shape: Sequence[int], mesh_shape: Mapping[str, int]
) -> PartitionSpec:
    """Makes a spec of the axes that the mesh has and that divide their dimension."""
    entries = []
    for names, size in zip(dims, shape, strict=True):
        names = (names,) if isinstance(names, str) else names or ()
        kept: tuple[str, ...] = ()
        for name in names:
            devices = math.prod(mesh_shape.get(axis, 1) for axis in (*kept, name))
            if mesh_shape.get(name, 1) > 1 and size % devices == 0:
                kept = (*kept, name)
        entries.append(kept if len(kept) > 1 else (kept[0] if kept else None))
    return PartitionSpec(*entries)
