import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

from marin_dagster.models.transformer import Transformer
from marin_dagster.training.sampling import generate
from tests.unit.models.test_layers import TINY


@pytest.fixture(scope="module")
def model() -> Transformer:
    return Transformer(TINY, 30, jax.random.key(0))


def greedy_by_hand(model, prompt, count):
    ids = list(prompt)
    read = eqx.filter_jit(lambda row: model.logits(model(row)[0])[0])
    for _ in range(count):
        row = jnp.asarray([ids + [0] * (16 - len(ids))])
        ids.append(int(jnp.argmax(read(row)[len(ids) - 1])))
    return ids[len(prompt) :]


def test_greedy_answers_equal_argmax_by_hand_and_rows_do_not_mix(model):
    prompts = [[1, 5, 7, 9], [1, 3]]
    together = generate(model, prompts, 6, stop_ids=())
    assert together == [greedy_by_hand(model, prompt, 6) for prompt in prompts]
    assert together == [generate(model, [prompt], 6, stop_ids=())[0] for prompt in prompts]


def test_an_answer_ends_with_its_stop_id(model):
    free = generate(model, [[1, 5]], 6, stop_ids=())[0]
    stopped = generate(model, [[1, 5]], 6, stop_ids=(free[2],))[0]
    assert stopped == free[: free.index(free[2]) + 1]


def test_drawing_depends_on_the_seed_only(model):
    def draw(seed):
        return generate(model, [[1, 5]], 12, stop_ids=(), temperature=2.0, seed=seed)

    assert draw(0) == draw(0)
    assert draw(0) != draw(1)
