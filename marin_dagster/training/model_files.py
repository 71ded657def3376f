"""Turns a model into named tensors on disk, and back, or says why not.

Tensors are found by name and refused when a name, shape or type differs.
"""

import dataclasses
import json
import os
from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax
import numpy as np
import safetensors
import safetensors.numpy

from marin_dagster.models.config import ModelConfig, architecture_of, config_of
from marin_dagster.models.language_model import LanguageModel
from marin_dagster.recipe import StageError

FORMAT = 2
MODEL = os.path.join("model", "model.safetensors")


def named_arrays(tree: Any) -> dict[str, jax.Array]:
    """Lists the arrays of a tree by their dotted paths, as `layers.0.attention.query`."""
    leaves = jax.tree_util.tree_leaves_with_path(eqx.filter(tree, eqx.is_array))
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}


def to_host(tree: Any) -> dict[str, np.ndarray]:
    """Copies the arrays of a tree to the host, so that the device may reuse their memory."""
    return {name: np.array(leaf) for name, leaf in named_arrays(tree).items()}


def refuse_misfit(tree: Any, tensors: Mapping[str, Any], where: str) -> None:
    """Raises StageError("bad_input") that lists missing, unknown and differing names.

    `tensors` are arrays, or whatever else has a shape and a dtype.
    """
    expected = named_arrays(tree)
    faults = [f"missing: {name}" for name in expected if name not in tensors]
    faults += [f"unknown: {name}" for name in tensors if name not in expected]
    for name in expected.keys() & tensors.keys():
        want, got = expected[name], tensors[name]
        if want.shape != got.shape or want.dtype != got.dtype:
            faults.append(
                f"{name} is {got.dtype}{list(got.shape)}, this run wants "
                f"{want.dtype}{list(want.shape)}"
            )
    if faults:
        raise StageError(
            "bad_input",
            f"{where} does not fit this run ({len(faults)} tensors): "
            f"{'; '.join(sorted(faults)[:8])}; load it with the configuration it was saved with",
        )


def fill(tree: Any, tensors: Mapping[str, np.ndarray], where: str) -> Any:
    """Replaces the arrays of a tree by the tensors of the same names.

    Raises StageError("bad_input") that lists missing, unknown and differing names.
    """
    refuse_misfit(tree, tensors, where)

    def replace(path, leaf):
        if not eqx.is_array(leaf):
            return leaf
        return jax.numpy.asarray(tensors[jax.tree_util.keystr(path, simple=True, separator=".")])

    return jax.tree_util.tree_map_with_path(replace, tree)


def save_model(model: LanguageModel, folder: str, extra: Mapping[str, Any]) -> None:
    """Writes `model/model.safetensors` and `config.json`, with `extra` facts for readers."""
    os.makedirs(os.path.join(folder, "model"), exist_ok=True)
    write_tensors(to_host(model), os.path.join(folder, MODEL))
    config = {
        "format": FORMAT,
        "vocab_size": model.vocab_size,
        "architecture": architecture_of(model.config),
        "model": dataclasses.asdict(model.config),
        **extra,
    }
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
        json.dump(config, file, indent=2, sort_keys=True)
        file.write("\n")


def load_model(folder: str) -> tuple[LanguageModel, ModelConfig]:
    """Reads a Checkpoint's folder, with the router biases that evaluation uses.

    Raises StageError("bad_input") when the files and the configuration disagree.
    """
    stored = read_config(folder)
    try:
        config = config_of(stored["architecture"], stored["model"])
    except ValueError as error:
        raise StageError("bad_input", f"the model of {folder} cannot be made: {error}") from error
    shapes = eqx.filter_eval_shape(config.make, stored["vocab_size"], jax.random.key(0))
    model = jax.tree.map(
        lambda leaf: np.zeros(leaf.shape, leaf.dtype) if isinstance(leaf, _Shape) else leaf, shapes
    )
    path = os.path.join(folder, MODEL)
    return fill(model, read_tensors(path), path), config


def read_config(folder: str) -> dict[str, Any]:
    """Reads `config.json` of a Checkpoint's folder."""
    path = os.path.join(folder, "config.json")
    with open(path, encoding="utf-8") as file:
        stored = json.load(file)
    if stored.get("format") != FORMAT:
        raise StageError(
            "bad_input",
            f"{path} has format {stored.get('format')!r}, this version reads {FORMAT}; "
            "rebuild the checkpoint",
        )
    return stored


def write_tensors(tensors: Mapping[str, np.ndarray], path: str) -> None:
    """Writes tensors in the order of their names, durably."""
    safetensors.numpy.save_file(dict(sorted(tensors.items())), path)
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def read_tensors(path: str) -> dict[str, np.ndarray]:
    """Reads every tensor of a safetensors file.

    Raises StageError("bad_input") when the file is not one.
    """
    try:
        return safetensors.numpy.load_file(path)
    except (OSError, safetensors.SafetensorError) as error:
        raise StageError("bad_input", f"{path} cannot be read: {error}; rebuild it") from error


_Shape = jax.ShapeDtypeStruct
