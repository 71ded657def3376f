"""Turns a tuple of layers into one function of hidden states: unrolled, or scanned when deep.

How layers run is placement: the parameters, their names and the numbers are the same.

Shapes: B batch, S sequence, D hidden.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray


class Execution(NamedTuple):
    """How layers run: `with execution(Execution(scan=True)): step(...)`.

    Scanned, layers of one kind are compiled once, at the price of a stacked copy of their weights;
    the time to compile no longer grows with depth. With `remat`, the way back computes each layer
    again from its input, and memory holds one hidden state per layer.
    """

    scan: bool = False
    remat: bool = False


execution = jax.make_user_context(default_value=Execution())


@runtime_checkable
class LayerCall(Protocol):
    """What a layer is to a stack."""

    def __call__(
        self,
        x: Float[Array, "B S D"],
        segment_ids: Int[Array, "B S"],
        key: PRNGKeyArray | None = None,
        /,
    ) -> tuple[Float[Array, "B S D"], dict[str, Array]]: ...


def apply_layers(
    layers: Sequence[LayerCall],
    x: Float[Array, "B S D"],
    segment_ids: Int[Array, "B S"],
    key: PRNGKeyArray | None = None,
) -> tuple[Float[Array, "B S D"], dict[str, Array]]:
    """Applies the layers in order, each with a key of its own; stacks their statistics."""
    how = execution.value
    period, repeats = repetition(layers) if how.scan else (1, 0)
    scanned = period * repeats
    keys = None if key is None else jax.random.split(key, len(layers))
    rows = []
    if repeats > 1:
        x, rows = _scan(layers[:scanned], period, x, segment_ids, keys, how.remat)
    else:
        scanned = 0
    for index in range(scanned, len(layers)):
        own = None if keys is None else keys[index]
        x, stats = _call(layers[index], x, segment_ids, own, how.remat)
        rows.append(jax.tree.map(lambda array: array[None], stats))
    return x, jax.tree.map(lambda *parts: jnp.concatenate(parts), *rows)


def repetition(layers: Sequence[LayerCall]) -> tuple[int, int]:
    """Finds the period after which layers repeat, and how often they do from the first on.

    Local and global layers differ; with every fourth global, four layers are a period. Of all
    periods, the one that leaves the fewest layers to compile.
    """
    kinds = [jax.tree.structure(layer) for layer in layers]
    found = (len(layers), len(layers), 1)
    for period in range(1, len(layers) // 2 + 1):
        same = 0
        while same < len(layers) and kinds[same] == kinds[same % period]:
            same += 1
        repeats = same // period
        found = min(found, (period + len(layers) - period * repeats, period, repeats))
    return found[1], found[2]


def _call(layer: LayerCall, x: Array, segment_ids: Array, key: PRNGKeyArray | None, remat: bool):
    return (eqx.filter_checkpoint(layer) if remat else layer)(x, segment_ids, key)


def _scan(
    layers: Sequence[LayerCall],
    period: int,
    x: Array,
    segment_ids: Array,
    keys: Array | None,
    remat: bool,
):
    """Scans over whole periods; returns the statistics stacked over all layers, in a list."""
    stacks = tuple(
        jax.tree.map(lambda *parts: jnp.stack(parts), *layers[place::period])
        for place in range(period)
    )

    if keys is not None:
        keys = keys[: len(layers)].reshape(-1, period)

    def body(x, step):
        group, own = step
        stats = []
        for place, layer in enumerate(group):
            key = None if own is None else own[place]
            x, row = _call(layer, x, segment_ids, key, remat)
            stats.append(row)
        return x, jax.tree.map(lambda *rows: jnp.stack(rows), *stats)

    x, stats = jax.lax.scan(body, x, (stacks, keys))
    return x, [jax.tree.map(lambda array: array.reshape(-1, *array.shape[2:]), stats)]
