"""Turns a model, its optimizer and a batch into the memory that training takes, before it starts.

The activations are those that differentiation keeps, layer by layer, as JAX names them; what the
compiler makes of them is a little less or more.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.extend.core import Var
from jaxtyping import PRNGKeyArray

from marin_dagster.memory import available_memory
from marin_dagster.models.language_model import LanguageModel
from marin_dagster.models.sharding import ROWS, parameter_spec, split_axes
from marin_dagster.recipe import Devices, StageError
from marin_dagster.training.loss import chunk_tokens
from marin_dagster.training.step import Step

GIB = 2**30


class Estimate(NamedTuple):
    """Bytes that one device needs, by what needs them."""

    parts: dict[str, int]

    @property
    def total(self) -> int:
        return sum(self.parts.values())

    @property
    def dominant(self) -> str:
        return max(self.parts, key=self.parts.__getitem__)

    def table(self) -> str:
        """One line per part, the largest first."""
        rows = sorted(self.parts.items(), key=lambda row: -row[1])
        lines = [f"{name:24} {size / GIB:9.3f} GiB {size / self.total:6.1%}" for name, size in rows]
        return "\n".join([*lines, f"{'together':24} {self.total / GIB:9.3f} GiB"])


def estimate(
    state: Any, rows: int, seq_len: int, devices: Devices, mesh_shape: Mapping[str, int]
) -> Estimate:
    """Adds up what a step holds at its peak: at the end of the way forth, or in the update.

    `state` is a train state, or the shapes of one (`eqx.filter_eval_shape`).
    """
    model: LanguageModel = state.model
    rows = max(1, rows // devices.micro_batches)
    local_rows = -(-rows // math.prod(mesh_shape.get(name, 1) for name in ROWS))
    local_tokens = local_rows * -(-seq_len // mesh_shape.get("context", 1))
    share = local_tokens / (rows * seq_len)
    parameters = _bytes(model, mesh_shape)
    hidden_dim, vocab = model.config.hidden_dim, model.vocab_size // mesh_shape.get("tensor", 1)
    width = model.embedding.dtype.itemsize
    chunk = min(chunk_tokens(vocab, hidden_dim), local_tokens)
    inputs = rows * seq_len * hidden_dim * width
    kept = [int(share * size) for size in _kept_by_layers(model, rows, seq_len)]
    logits = 2 * chunk * vocab * 4
    saved = sum(kept)
    if devices.remat == "block":  # one layer at a time is computed again, when logits are gone
        saved, again = int(share * inputs) * len(kept), max(kept, default=0)
        saved, logits = (saved + again, 0) if again > logits else (saved, logits)
    return Estimate(
        {
            "parameters": parameters,
            "gradients": parameters * (2 if devices.micro_batches > 1 else 1),
            "optimizer state": _bytes(state.optimizer, mesh_shape),
            "activations": saved,
            "logits of a chunk": logits,
            "batch": 4 * 4 * local_tokens + 2 * int(share * inputs),
        }
    )


def check_memory(
    step: Step,
    state: Any,
    batch: Mapping[str, Any],
    devices: Devices,
    mesh: Any,
    log: Callable[[str], None],
    where: str,
) -> None:
    """Logs what a step will need, refuses what cannot fit, and logs what XLA makes of it."""
    shape = {} if mesh is None else mesh.shape
    rows, seq_len = batch["tokens"].shape
    found = estimate(state, rows, seq_len, devices, shape)
    log(f"memory of one device, estimated:\n{found.table()}")
    refuse_what_cannot_fit(found, device_limit(), where)
    peak = step.peak_bytes(state, batch)
    if peak is not None:
        log(
            f"memory of one device, compiled: {peak / GIB:.3f} GiB, "
            f"{peak / found.total:.2f} times the estimate"
        )


def refuse_what_cannot_fit(found: Estimate, limit: int | None, where: str) -> None:
    """Raises StageError("bad_input") with ways out when the estimate is beyond the limit."""
    if limit is None or found.total <= limit:
        return
    raise StageError(
        "bad_input",
        f"{where} needs about {found.total / GIB:.3g} GiB on each device and there are "
        f"{limit / GIB:.3g} GiB; most of it is {found.dominant} "
        f"({found.parts[found.dominant] / GIB:.3g} GiB); {_WAYS_OUT[found.dominant]}\n"
        + found.table(),
        {"needed_bytes": found.total, "available_bytes": limit},
    )


_FEWER = "use MARIN_REMAT=block, more MARIN_MICRO_BATCHES, or more devices in MARIN_MESH"
_SHARDED = (
    "divide it over more devices in MARIN_MESH (data, expert, tensor), or use a smaller model"
)
_WAYS_OUT = {
    "parameters": _SHARDED,
    "gradients": _SHARDED,
    "optimizer state": _SHARDED,
    "activations": _FEWER,
    "logits of a chunk": "divide the vocabulary along tensor in MARIN_MESH, or use a smaller one",
    "batch": _FEWER,
}


def device_limit() -> int | None:
    """Bytes that one device of this process can have; None where nobody knows."""
    stats = jax.local_devices()[0].memory_stats() or {}
    if "bytes_limit" in stats:
        return stats["bytes_limit"] - stats.get("bytes_in_use", 0)
    available = available_memory()
    return None if available is None else available // jax.local_device_count()


def _bytes(tree: Any, mesh_shape: Mapping[str, int]) -> int:
    """Bytes of a tree on one device, divided by its names."""
    total = 0
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        if isinstance(leaf, jax.ShapeDtypeStruct) or eqx.is_array(leaf):
            name = jax.tree_util.keystr(path, simple=True, separator=".")
            spec = parameter_spec(name, leaf.shape, mesh_shape)
            parts = math.prod(mesh_shape[axis] for axis in split_axes(spec))
            total += math.prod(leaf.shape) * leaf.dtype.itemsize // parts
    return total


def _kept_by_layers(model: LanguageModel, rows: int, seq_len: int) -> list[int]:
    """Bytes that each layer keeps for its way back, on one device; equal layers are traced once."""
    x = jax.ShapeDtypeStruct((rows, seq_len, model.config.hidden_dim), model.embedding.dtype)
    segments = jax.ShapeDtypeStruct((rows, seq_len), jnp.int32)
    known: dict[str, int] = {}
    sizes = []
    for layer in model.layers:
        shapes = jax.tree.map(_shape, layer)
        kind = str(jax.tree.flatten(shapes))
        if kind not in known:
            known[kind] = _kept(shapes, x, segments, jax.eval_shape(lambda: jax.random.key(0)))
        sizes.append(known[kind])
    return sizes


def _shape(leaf: Any) -> Any:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) if eqx.is_array(leaf) else leaf


def _kept(layer: Callable[..., Any], x: Any, segments: Any, key: PRNGKeyArray | Any) -> int:
    """Bytes of a layer's residuals that are not its parameters."""
    params, static = eqx.partition(layer, lambda leaf: isinstance(leaf, jax.ShapeDtypeStruct))

    def forth(params, x, segments, key):
        def call(params, x):
            out, _ = eqx.combine(params, static)(x, segments, key)
            return out

        return jax.vjp(call, params, x)

    jaxpr = jax.make_jaxpr(forth)(params, x, segments, key).jaxpr
    inputs = set(jaxpr.invars)
    kept = {var for var in jaxpr.outvars[1:] if isinstance(var, Var) and var not in inputs}
    arrays: list[Any] = [var.aval for var in kept]
    return sum(math.prod(array.shape) * array.dtype.itemsize for array in arrays)
