"""Turns chosen experts into those that a capacity lets through, fairly.

Shapes: B batch, S sequence, K choices per token, R contenders of one position (B·K), N takers.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, PRNGKeyArray

from marin_dagster.models.sharding import ROWS, constrain


def fair_keep(
    chosen: Int[Array, "B S K"],
    valid: Bool[Array, "B S"],
    num_takers: int,
    capacity_factor: float,
    key: PRNGKeyArray,
) -> Bool[Array, "B S K"]:
    """Marks the assignments that are kept; those of invalid tokens never are.

    Every taker (an expert, or a peer that holds experts) gets a budget that grows with the tokens
    seen: capacity_factor · assignments up to this position / takers, over all rows, rounded up or
    down by one draw. What a position leaves, later ones may use. Where a position has more
    contenders than the budget has left, a random order of the rows decides, drawn anew for every
    position. So no fate depends on later tokens, and none on the index of the taker, the row or,
    under steady overload, the position. Positions are dealt to the devices, since all rows of one
    must meet.
    """
    batch, seq_len, num_chosen = chosen.shape
    chosen = constrain(chosen, None, ROWS, None)
    valid = constrain(valid, None, ROWS)
    key_order, key_budget = jax.random.split(key)
    order = constrain(row_order(key_order, batch, seq_len), None, ROWS)
    in_order = jnp.take_along_axis(chosen, order[..., None], axis=0)
    there = jnp.take_along_axis(valid, order, axis=0)
    contends = jax.nn.one_hot(in_order, num_takers, dtype=jnp.int32) * there[..., None, None]
    contends = contends.transpose(0, 2, 1, 3).reshape(batch * num_chosen, seq_len, num_takers)
    rank = jnp.cumsum(contends, axis=0)
    rate = num_chosen / num_takers * capacity_factor
    kept = kept_at(rank[-1], budget(key_budget, valid, rate, num_takers))
    wins = ((rank <= kept) & (contends > 0)).any(-1)
    wins = wins.reshape(batch, num_chosen, seq_len).transpose(0, 2, 1)
    back = jnp.argsort(order, axis=0)
    return constrain(jnp.take_along_axis(wins, back[..., None], axis=0), ROWS, "context", None)


def row_order(key: PRNGKeyArray, batch: int, seq_len: int) -> Int[Array, "B S"]:
    """Draws a random order of the rows for every position."""
    draws = jax.random.bits(key, (batch, seq_len))
    return jnp.argsort(draws, axis=0, stable=True).astype(jnp.int32)


def budget(
    key: PRNGKeyArray, valid: Bool[Array, "B S"], per_token: float, num_takers: int
) -> Int[Array, "S N"]:
    """Assignments that a taker may have up to each position.

    Where the steps of the whole numbers lie is drawn: always at the same positions, they would
    favour these.
    """
    seen = jnp.cumsum(valid.sum(0)).astype(jnp.float32)
    return jnp.floor(seen[:, None] * per_token + jax.random.uniform(key, (num_takers,))).astype(
        jnp.int32
    )


def kept_at(contenders: Int[Array, "S N"], limit: Int[Array, "S N"]) -> Int[Array, "S N"]:
    """Solves used(t) = min(used(t-1) + contenders(t), limit(t)) at once; returns its increments."""
    total = jnp.cumsum(contenders, axis=0)
    used = total + jnp.minimum(0, jax.lax.cummin(limit - total, axis=0))
    return jnp.diff(used, axis=0, prepend=0)
