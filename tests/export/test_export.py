"""The exported folder is what `transformers` needs, and a wrong one is refused."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import transformers

from marin_dagster.data.tokenizer import load_tokenizer
from marin_dagster.data.tokenizer_gate import odd_strings
from marin_dagster.evaluation.export import ExportHuggingFace
from marin_dagster.evaluation.export_check import compare_with_transformers
from marin_dagster.evaluation.export_mapping import hugging_face_tensors
from marin_dagster.models.dense import DenseConfig
from marin_dagster.posttraining.chat import render
from marin_dagster.recipe import StageError
from marin_dagster.training.model_files import to_host
from tests.fake_context import build
from tests.unit.data import corpus
from tests.unit.data.corpus import TOKENIZER
from tests.unit.data.test_tokenizer_import import END, imported, write_foreign
from tests.unit.evaluation.models import SMALL, RandomModel

# Two layers, of which the last is global; prompts are longer than the window.
LOCAL = dataclasses.replace(SMALL, num_layers=2, sliding_window=8)
DENSE = DenseConfig(
    hidden_dim=16,
    num_layers=1,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    intermediate_dim=24,
    seq_len=64,
)


def test_logits_equal_ours(exported):
    assert exported.summary.numbers["logits_checked"] is True
    assert exported.summary.numbers["logits_max_difference"] <= 1e-4


@pytest.mark.parametrize("model", [LOCAL, DENSE], ids=["local layers", "dense"])
def test_logits_of_other_models_equal_ours(exported, model):
    checkpoint = RandomModel(name=type(model).__name__.lower(), version="dev", model=model)
    build(checkpoint, exported.root)
    export = ExportHuggingFace(
        name=checkpoint.name, version="dev", checkpoint=checkpoint, tokenizer=TOKENIZER
    )
    assert build(export, exported.root).numbers["logits_max_difference"] <= 1e-4


def test_an_imported_tokenizer_gives_equal_ids_from_source_to_export(exported, tmp_path):
    foreign = transformers.PreTrainedTokenizerFast(
        tokenizer_object=write_foreign(tmp_path / "written"), bos_token=END, eos_token=END
    )
    foreign.save_pretrained(tmp_path / "saved")
    recipe = imported(tmp_path / "saved")
    checkpoint = RandomModel(name="imported", version="dev", model=DENSE, tokenizer=recipe)
    export = ExportHuggingFace(
        name="imported", version="dev", checkpoint=checkpoint, tokenizer=recipe
    )
    for one in (recipe, checkpoint):
        build(one, exported.root)
    assert build(export, exported.root).numbers["logits_max_difference"] <= 1e-4
    folder = exported.root / "artifacts" / export.address
    loaded = transformers.AutoTokenizer.from_pretrained(folder)
    ours = load_tokenizer(str(exported.root / "artifacts" / recipe.address))
    for number in range(20):
        ids = foreign.encode(corpus.text(number), add_special_tokens=False)
        assert loaded.encode(corpus.text(number)) == [ours.bos_id, *ids]
        assert ours.encode(corpus.text(number)) == ids


def test_every_value_of_the_model_is_in_the_file_once(exported):
    tensors = safetensors.numpy.load_file(f"{exported.folder}/model.safetensors")
    ours = np.concatenate([t.ravel() for t in to_host(exported.model).values()])
    theirs = np.concatenate([t.ravel() for t in tensors.values()])
    np.testing.assert_array_equal(np.sort(ours), np.sort(theirs))


def test_a_tensor_without_a_place_is_named(exported):
    with pytest.raises(StageError, match=r"'layers\.0\.moe\.extra' has no place"):
        hugging_face_tensors({"layers.0.moe.extra": np.zeros(3)})


@pytest.mark.parametrize("change", ["drop", "swap", "bias"])
def test_a_damaged_export_is_refused(exported, tmp_path, change):
    for file in Path(exported.folder).iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    path = tmp_path / "model.safetensors"
    tensors = safetensors.numpy.load_file(path)
    gate, up = (f"model.layers.0.mlp.experts.1.{name}_proj.weight" for name in ("gate", "up"))
    if change == "drop":
        del tensors["model.norm.weight"]
    elif change == "swap":
        tensors[gate], tensors[up] = tensors[up], tensors[gate]
    else:
        tensors["model.layers.0.mlp.gate.e_score_correction_bias"] *= 0
    safetensors.numpy.save_file(tensors, path, {"format": "pt"})
    with pytest.raises(StageError, match=r"could not place every tensor|logits of the export"):
        compare_with_transformers(str(tmp_path), exported.model, exported.tokenizer)


def test_the_configuration_keeps_stop_tokens_and_rope_base(exported):
    config = transformers.AutoConfig.from_pretrained(exported.folder)
    generation = transformers.GenerationConfig.from_pretrained(exported.folder)
    assert generation.eos_token_id == config.eos_token_id == [2, 7]
    assert (generation.pad_token_id, generation.bos_token_id) == (3, 1)
    stored = json.loads(Path(exported.folder, "config.json").read_text())
    assert stored["rope_theta"] == stored["rope_parameters"]["rope_theta"] == 10_000.0
    assert config.rope_parameters["rope_theta"] == 10_000.0


def test_auto_tokenizer_gives_our_ids(exported):
    loaded = transformers.AutoTokenizer.from_pretrained(exported.folder)
    assert (loaded.bos_token_id, loaded.eos_token_id, loaded.pad_token_id) == (1, 2, 3)
    assert len(loaded) == exported.tokenizer.vocab_size
    for text in odd_strings():
        if not exported.tokenizer.count_control_spellings(text):
            ids = exported.tokenizer.encode(text)
            assert loaded.encode(text, add_special_tokens=False) == ids
            assert loaded.decode([1, *ids, 2], skip_special_tokens=True) == text


def test_the_chat_template_equals_render(exported):
    loaded = transformers.AutoTokenizer.from_pretrained(exported.folder)
    messages = [
        {"role": "user", "content": "\n hi  "},
        {"role": "assistant", "content": " yes\n"},
        {"role": "user", "content": ""},
        {"role": "assistant", "content": "{% raw %}<b>&amp;"},
    ]
    ids, weights = render(messages, exported.tokenizer)
    found = loaded.apply_chat_template(
        messages, return_dict=True, return_assistant_tokens_mask=True
    )
    assert found["input_ids"] == ids
    assert found["assistant_masks"] == weights
