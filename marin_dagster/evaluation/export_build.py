"""Turns a checkpoint into a Hugging Face folder: weights, configuration, tokenizer; no torch."""

import importlib.util
import json
import os
import shutil
from collections.abc import Mapping
from typing import Any

import safetensors.numpy

from marin_dagster.data.tokenizer import MODEL_FILE, TextTokenizer, load_tokenizer
from marin_dagster.data.tokenizer_export import TOKENIZER_FILES
from marin_dagster.evaluation.export import ExportHuggingFace
from marin_dagster.evaluation.export_mapping import hugging_face_tensors, model_config
from marin_dagster.posttraining.chat import END
from marin_dagster.recipe import Context, StageError, Summary
from marin_dagster.training.model_files import load_model, read_config, to_host

WEIGHTS = "model.safetensors"
CHECKED_WITH = ("torch", "transformers")  # the extra `export`
INSTALL = "pip install -c constraints.txt -e '.[export]'"


def build_export(recipe: ExportHuggingFace, ctx: Context) -> Summary:
    """Writes the folder, then has `transformers` read it where it is installed."""
    checkpoint, source = ctx.path(recipe.checkpoint), ctx.path(recipe.tokenizer)
    tokenizer = load_tokenizer(source)
    _check_tokenizer(recipe, read_config(checkpoint), tokenizer)
    model, config = load_model(checkpoint)
    settings = model_config(config, tokenizer)
    tensors = hugging_face_tensors(to_host(model))
    path = os.path.join(ctx.out, WEIGHTS)
    safetensors.numpy.save_file(dict(sorted(tensors.items())), path, {"format": "pt"})
    os.chmod(path, 0o644)  # the library leaves it to its owner alone
    _write_json(ctx.out, "config.json", settings)
    _write_json(ctx.out, "generation_config.json", generation_config(tokenizer))
    _write_tokenizer(source, ctx.out, config.seq_len)
    numbers: dict[str, Any] = {
        "tensors": len(tensors),
        "parameters": sum(tensor.size for tensor in tensors.values()),
        "logits_checked": False,
    }
    missing = [name for name in CHECKED_WITH if importlib.util.find_spec(name) is None]
    if missing:
        warning = (
            f"**The exported logits were not checked**: {' and '.join(missing)} not installed. "
            f"Run `{INSTALL}` in the checkout, then build with --force, to compare them."
        )
        ctx.log(warning)
        return Summary(numbers=numbers, notes={"Logits not checked": warning})
    from marin_dagster.evaluation.export_check import compare_with_transformers

    found = compare_with_transformers(ctx.out, model, tokenizer)
    return Summary(numbers={**numbers, "logits_checked": True, **found})


def generation_config(tokenizer: TextTokenizer) -> dict[str, Any]:
    """`generation_config.json`: a text ends at `</s>`, an assistant's turn at `<|end|>`."""
    return {
        "bos_token_id": tokenizer.bos_id,
        "eos_token_id": [tokenizer.eos_id, tokenizer.token_id(END)],
        "pad_token_id": tokenizer.pad_id,
    }


def _check_tokenizer(
    recipe: ExportHuggingFace, stored: Mapping[str, Any], tokenizer: TextTokenizer
) -> None:
    if stored["tokenizer"] != tokenizer.digest:
        raise StageError(
            "bad_input",
            f"{recipe.checkpoint.address} was trained with tokenizer {stored['tokenizer']}, "
            f"{recipe.tokenizer.address} is {tokenizer.digest}; give the checkpoint's tokenizer",
        )


def _write_tokenizer(source: str, out: str, seq_len: int) -> None:
    for name in (MODEL_FILE, *TOKENIZER_FILES):
        if name != MODEL_FILE or os.path.exists(os.path.join(source, name)):  # not of an import
            shutil.copyfile(os.path.join(source, name), os.path.join(out, name))
    path = os.path.join(out, "tokenizer_config.json")
    with open(path, encoding="utf-8") as file:
        settings = json.load(file)
    _write_json(out, "tokenizer_config.json", {**settings, "model_max_length": seq_len})


def _write_json(folder: str, name: str, content: Mapping[str, Any]) -> None:
    with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
        json.dump(content, file, indent=2, ensure_ascii=False)
        file.write("\n")
