"""Turns prompts into continuations: greedy or by temperature, many rows at once.

Shapes: B rows, S tokens of a row with room for the answer.
"""

from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from marin_dagster.models.language_model import LanguageModel

ROUNDING = 64  # rows are padded to multiples, so that few shapes are compiled


def generate(
    model: LanguageModel,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
    stop_ids: Sequence[int],
    temperature: float = 0.0,
    seed: int = 0,
) -> list[list[int]]:
    """Continues every prompt until a stop id, which is included, or `max_new_tokens`.

    Temperature 0 takes the likeliest token. Rows do not influence each other's numbers.
    """
    if not prompts:
        return []
    if min(map(len, prompts)) == 0:
        raise ValueError("a prompt has 0 tokens, at least 1 is needed; begin with the bos id")
    longest = max(map(len, prompts))
    width = -(-longest // ROUNDING) * ROUNDING
    tokens = np.zeros((len(prompts), width), np.int32)
    for row, prompt in enumerate(prompts):
        tokens[row, : len(prompt)] = prompt
    lengths = np.array([len(prompt) for prompt in prompts], np.int32)
    new = _generate(
        model,
        jnp.asarray(tokens),
        jnp.asarray(lengths),
        jnp.asarray(list(stop_ids) or [-1], jnp.int32),
        jnp.float32(temperature),
        jax.random.key(seed),
        max_new_tokens,
    )
    return [_until_stop(row, stop_ids) for row in np.asarray(new).tolist()]


def _until_stop(row: list[int], stop_ids: Sequence[int]) -> list[int]:
    ends = [place for place, token in enumerate(row) if token in stop_ids]
    return row[: ends[0] + 1] if ends else row


@eqx.filter_jit
def _generate(
    model: LanguageModel,
    tokens: Int[Array, "B S"],
    lengths: Int[Array, " B"],
    stop_ids: Int[Array, " N"],
    temperature: Float[Array, ""],
    key: PRNGKeyArray,
    max_new_tokens: int,
) -> Int[Array, "B M"]:
    """Reads the prompts in one pass, then one token per row and turn, until all rows stopped."""
    batch, width = tokens.shape
    places = jnp.broadcast_to(jnp.arange(width), (batch, width))
    cache = model.empty_cache(batch, width + max_new_tokens)
    hidden, cache = model.decode(tokens, places, places < lengths[:, None], cache)
    last = jnp.take_along_axis(hidden, (lengths - 1)[:, None, None], axis=1)
    out = jnp.zeros((batch, max_new_tokens), jnp.int32)

    def unfinished(carry) -> Bool[Array, ""]:
        turn, _, _, _, stopped = carry
        return (turn < max_new_tokens) & ~stopped.all()

    def advance(carry):
        turn, last, cache, out, stopped = carry
        logits = model.logits(last)[:, 0]
        token = _choose(logits, temperature, jax.random.fold_in(key, turn))
        out = out.at[:, turn].set(token)
        stopped = stopped | jnp.isin(token, stop_ids)
        place = (lengths + turn)[:, None]
        last, cache = model.decode(token[:, None], place, jnp.ones_like(place, bool), cache)
        return turn + 1, last, cache, out, stopped

    start = (jnp.int32(0), last, cache, out, jnp.zeros(batch, bool))
    return jax.lax.while_loop(unfinished, advance, start)[3]


def _choose(
    logits: Float[Array, "B V"], temperature: Float[Array, ""], key: PRNGKeyArray
) -> Int[Array, " B"]:
    likeliest = jnp.argmax(logits, axis=-1)
    drawn = jax.random.categorical(key, logits / jnp.maximum(temperature, 1e-6), axis=-1)
    return jnp.where(temperature > 0, drawn, likeliest).astype(jnp.int32)
