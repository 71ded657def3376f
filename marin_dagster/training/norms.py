"""Turns trees of gradients, parameters and updates into one norm per group of parameters."""

from collections import defaultdict
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def group_of(path: str) -> str:
    """The group of a dotted path: its module without layer numbers; all norms are one group.

    >>> [group_of(p) for p in ("layers.3.attention.query", "layers.0.moe.router.weight", "head")]
    ['attention', 'moe.router', 'head']
    """
    parts = [part for part in path.split(".") if part != "layers" and not part.isdigit()]
    modules = parts[:-1]
    if any(part.endswith("norm") for part in parts):
        return "norm"
    return ".".join(modules or parts)


def group_norms(tree: Any, name: str) -> dict[str, Float[Array, ""]]:
    """Returns `name` for the whole tree and `name/<group>` for every group: Euclidean norms.

    The squares are summed in float32, whatever the type of the leaves.
    """
    squares: defaultdict[str, Any] = defaultdict(lambda: jnp.zeros(()))
    for path, leaf in jax.tree_util.tree_leaves_with_path(eqx.filter(tree, eqx.is_array)):
        square = jnp.sum(jnp.square(leaf.astype(jnp.float32)))
        squares[group_of(jax.tree_util.keystr(path, simple=True, separator="."))] += square
    total = sum(squares.values(), start=jnp.zeros(()))
    groups = {f"{name}/{group}": jnp.sqrt(square) for group, square in sorted(squares.items())}
    return {name: jnp.sqrt(total), **groups}
