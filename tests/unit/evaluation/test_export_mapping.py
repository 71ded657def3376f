import dataclasses
from types import SimpleNamespace

import pytest

from marin_dagster.evaluation.export_mapping import model_config
from marin_dagster.recipe import StageError
from tests.unit.evaluation.models import SMALL
from tests.unit.models.test_hero import TINY

TOKENIZER = SimpleNamespace(
    vocab_size=9, bos_id=1, eos_id=2, pad_id=3, token_id=lambda text: len(text)
)


def test_local_layers_are_named_one_by_one():
    config = dataclasses.replace(SMALL, num_layers=5, sliding_window=8)
    found = model_config(config, TOKENIZER)
    assert found["layer_types"] == ["sliding_attention"] * 3 + ["full_attention"] * 2
    assert found["sliding_window"] == 8


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (dataclasses.replace(SMALL, expert_latent_dim=8), r"expert_latent_dim=8: experts at"),
        (TINY, r"model=HeroConfig is computed by no architecture"),
    ],
)
def test_what_transformers_cannot_compute_is_refused(config, message):
    with pytest.raises(StageError, match=message):
        model_config(config, TOKENIZER)
