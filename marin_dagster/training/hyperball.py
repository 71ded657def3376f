"""Turns directions into updates that keep the norm of every matrix, and watches that they do.

Matrices are the last two axes of an array; what stands before them counts matrices, so each expert
of a stack has its own norm and direction: a busy expert cannot grow at the cost of an idle one.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.core import Tracer
from jaxtyping import Array, Float, Int

DRIFT_LIMIT = 1e-3  # relative change of a norm above which something else changes the weights
MUON_STEPS = 5  # Newton-Schulz iterations
ADAM_RMS = 0.2  # root mean square of AdamW's updates, in learning rates (arXiv 2502.16982)


class HyperballState(NamedTuple):
    """Steps done, norms at the start, and how far off the weights were before the last step."""

    count: Int[Array, ""]
    norm: Any  # per array, of shape x.shape[:-2]
    drift: Any


def hyperball(rate: Callable[[Any], Any]) -> optax.GradientTransformation:
    """Moves each matrix p against its direction u on the sphere of its first norm r.

    p' = p − rate · r · u / ‖u‖, then p' · r / ‖p'‖, in Frobenius norms. Marin rescales to the norm
    before the step; the norm of the start is the same number, and rounding does not add up.

    Raises ValueError for a matrix that starts at zero and so could never move.
    """

    def init(params):
        norm = jax.tree.map(matrix_norm, params)
        _refuse_zeros(norm)
        return HyperballState(jnp.zeros((), jnp.int32), norm, jax.tree.map(jnp.zeros_like, norm))

    def update(updates, state, params=None):
        assert params is not None
        learning_rate = rate(state.count)

        def change(direction, param, norm):
            size = _wide(matrix_norm(direction))
            unit = jnp.where(size > 0, direction / jnp.where(size > 0, size, 1), 0)
            moved = param - learning_rate * _wide(norm) * unit
            return moved * _wide(norm / matrix_norm(moved)).astype(param.dtype) - param

        def off(param, norm):
            return jnp.abs(matrix_norm(param) / norm - 1)

        new = jax.tree.map(change, updates, params, state.norm)
        drift = jax.tree.map(off, params, state.norm)
        return new, HyperballState(state.count + 1, state.norm, drift)

    return optax.GradientTransformation(init, update)


def muon(momentum: float) -> optax.GradientTransformation:
    """Nesterov momentum, each matrix brought near its polar factor by quintic Newton-Schulz."""
    return optax.contrib.scale_by_muon(
        ns_steps=MUON_STEPS, beta=momentum, nesterov=True, weight_dimension_numbers=_last_two
    )


def muon_scale() -> optax.GradientTransformation:
    """Scales Muon's directions of all shapes to the root mean square of AdamW's updates."""

    def scale(updates, params=None):
        del params
        return jax.tree.map(lambda x: ADAM_RMS * max(x.shape[-2:]) ** 0.5 * x, updates)

    return optax.stateless(scale)


def norm_drift(state: Any) -> Float[Array, ""] | None:
    """The largest relative drift of a matrix's norm, or None where no norm is kept.

    `state` is an optimizer state or a tree that holds one. The drift is that of the weights which
    the last step found: an update cannot cause it, a damaged or foreign weight does.
    """
    drifts = list(norm_drifts(state).values())
    return jnp.stack([drift.max() for drift in drifts]).max() if drifts else None


def norm_drifts(state: Any) -> dict[str, Float[Array, "*stack"]]:
    """The relative drift of the norm of every matrix, by the names of the parameters."""
    found = {}
    for part in jax.tree.leaves(state, is_leaf=_keeps_norms):
        if _keeps_norms(part):
            for path, drift in jax.tree_util.tree_leaves_with_path(part.drift):
                found[jax.tree_util.keystr(path, simple=True, separator=".")] = drift
    return found


def matrix_norm(x: Float[Array, "*stack rows columns"]) -> Float[Array, "*stack"]:
    """Frobenius norms, in single precision."""
    return jnp.sqrt(jnp.sum(jnp.square(x.astype(jnp.float32)), axis=(-2, -1)))


def _keeps_norms(part: Any) -> bool:
    return isinstance(part, HyperballState)


def _wide(norm: Float[Array, "*stack"]) -> Float[Array, "*stack 1 1"]:
    return norm[..., None, None]


def _last_two(params: Any) -> Any:
    return jax.tree.map(
        lambda x: optax.contrib.MuonDimensionNumbers(x.ndim - 2, x.ndim - 1), params
    )


def _refuse_zeros(norm: Any) -> None:
    for path, value in jax.tree_util.tree_leaves_with_path(norm):
        if isinstance(value, Tracer):  # only real weights can be looked at
            continue
        if not jnp.all(value > 0):
            name = jax.tree_util.keystr(path, simple=True, separator=".")
            raise ValueError(
                f"{name} starts with a matrix of norm 0, and its optimizer keeps norms; start it "
                "elsewhere, or give it to Adam by by_adam"
            )
