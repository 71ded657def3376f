"""Turns training state into named tensors on disk, and back, or says why not.

A folder `step-NNNNNNNN` holds `model.safetensors`, `optimizer.safetensors` and, written last,
`manifest.json` with the checksums. It appears by one rename. Tensors are found by name and
refused when a name, shape or type differs.
"""

import concurrent.futures
import dataclasses
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
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
KEPT = 2  # resume points; the older one serves when the newest does not verify


def named_arrays(tree: Any) -> dict[str, jax.Array]:
    """Lists the arrays of a tree by their dotted paths, as `layers.0.attention.query`."""
    leaves = jax.tree_util.tree_leaves_with_path(eqx.filter(tree, eqx.is_array))
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}


def to_host(tree: Any) -> dict[str, np.ndarray]:
    """Copies the arrays of a tree to the host, so that the device may reuse their memory."""
    return {name: np.array(leaf) for name, leaf in named_arrays(tree).items()}


def fill(tree: Any, tensors: Mapping[str, np.ndarray], where: str) -> Any:
    """Replaces the arrays of a tree by the tensors of the same names.

    Raises StageError("bad_input") that lists missing, unknown and differing names.
    """
    expected = named_arrays(tree)
    faults = [f"missing: {name}" for name in expected if name not in tensors]
    faults += [f"unknown: {name}" for name in tensors if name not in expected]
    for name in expected.keys() & tensors.keys():
        want, got = expected[name], tensors[name]
        if want.shape != got.shape or want.dtype != got.dtype:
            faults.append(
                f"{name} is {got.dtype}{list(got.shape)}, the model wants "
                f"{want.dtype}{list(want.shape)}"
            )
    if faults:
        raise StageError(
            "bad_input",
            f"{where} does not fit the model ({len(faults)} tensors): "
            f"{'; '.join(sorted(faults)[:8])}; load it with the configuration it was saved with",
        )

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


class Saver:
    """Writes resume points from a background thread; a failed write surfaces at the next call.

    Use as a context manager: leaving it waits for the last write and raises what it raised.
    """

    def __init__(self, folder: str, write: Callable = write_tensors):
        self.folder = folder
        self._write = write
        self._pool = concurrent.futures.ThreadPoolExecutor(1, "checkpoint")
        self._pending: concurrent.futures.Future | None = None
        self.last_durable: int | None = None

    def __enter__(self) -> "Saver":
        os.makedirs(self.folder, exist_ok=True)
        for name in os.listdir(self.folder):
            if name.startswith(".step-"):  # what a killed attempt left half written
                shutil.rmtree(os.path.join(self.folder, name))
        return self

    def __exit__(self, kind: type | None, *_: Any) -> None:
        try:
            if kind is None:
                self.wait()
        finally:
            self._pool.shutdown(wait=True)

    def save(self, step: int, model: Any, optimizer: Any) -> None:
        """Copies the state after `step` steps and writes it; waits for the write before."""
        self.wait()
        self._pending = self._pool.submit(self._commit, step, to_host(model), to_host(optimizer))

    def check(self) -> None:
        """Raises what the last write raised, if it has ended."""
        if self._pending is not None and self._pending.done():
            self.wait()

    def wait(self) -> None:
        """Waits for the last write and raises what it raised."""
        pending, self._pending = self._pending, None
        if pending is None:
            return
        try:
            pending.result()
        except (OSError, safetensors.SafetensorError) as error:
            raise StageError(
                "error",
                f"a checkpoint could not be written: {error}; the last durable step is "
                f"{self.last_durable}; free the disk, or mend the storage, and build again",
            ) from error

    def _commit(self, step: int, model: dict, optimizer: dict) -> None:
        final = os.path.join(self.folder, f"step-{step:08d}")
        draft = os.path.join(self.folder, f".step-{step:08d}")
        shutil.rmtree(draft, ignore_errors=True)
        os.makedirs(draft)
        files = {}
        for name, tensors in (("model", model), ("optimizer", optimizer)):
            path = os.path.join(draft, f"{name}.safetensors")
            self._write(tensors, path)
            files[f"{name}.safetensors"] = _checksum(path)
        with open(os.path.join(draft, "manifest.json"), "w", encoding="utf-8") as file:
            json.dump({"format": FORMAT, "step": step, "files": files}, file)
            file.flush()
            os.fsync(file.fileno())
        shutil.rmtree(final, ignore_errors=True)
        os.rename(draft, final)
        self.last_durable = step
        for old in saved_steps(self.folder)[KEPT:]:
            shutil.rmtree(os.path.join(self.folder, f"step-{old:08d}"))


def saved_steps(folder: str) -> list[int]:
    """Lists the steps with a resume point, newest first; they may not verify."""
    names = os.listdir(folder) if os.path.isdir(folder) else []
    steps = (name.removeprefix("step-") for name in names if name.startswith("step-"))
    return sorted((int(step) for step in steps if step.isdigit()), reverse=True)


def restore(
    folder: str, model: Any, optimizer: Any, log: Callable[[str], None]
) -> tuple[int, Any, Any]:
    """Fills model and optimizer from the newest resume point that verifies.

    Returns the number of steps done, 0 when there is none. Says what it skipped and why.
    """
    for step in saved_steps(folder):
        point = os.path.join(folder, f"step-{step:08d}")
        fault = _fault(point)
        if fault:
            log(f"resume point {step} is skipped: {fault}")
            continue
        paths = [os.path.join(point, f"{name}.safetensors") for name in ("model", "optimizer")]
        model = fill(model, read_tensors(paths[0]), paths[0])
        optimizer = fill(optimizer, read_tensors(paths[1]), paths[1])
        return step, model, optimizer
    return 0, model, optimizer


def _fault(point: str) -> str | None:
    try:
        with open(os.path.join(point, "manifest.json"), encoding="utf-8") as file:
            manifest = json.load(file)
        for name, checksum in manifest["files"].items():
            if _checksum(os.path.join(point, name)) != checksum:
                return f"{name} does not match its checksum"
    except (OSError, json.JSONDecodeError, KeyError) as error:
        return f"its manifest or a file is unreadable ({error})"
    return None


def _checksum(path: str) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


_Shape = jax.ShapeDtypeStruct
