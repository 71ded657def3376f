"""Turns Tasks artifacts into lm-evaluation-harness tasks that need no network."""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from marin_dagster.recipe import StageError


class TaskFile(NamedTuple):
    """A task's YAML file and the JSON lines that it reads, by split."""

    name: str
    path: str
    data_files: Mapping[str, list[str]]
    options: Mapping[str, Any]  # the YAML file's dataset_kwargs


def find_tasks(folders: Iterable[str], wanted: Sequence[str] = ()) -> dict[str, TaskFile]:
    """The tasks of artifact folders by name, or only those wanted, checked without lm-eval.

    Raises StageError that names a task that is missing, twice there, without its data, or in need
    of the network.
    """
    found: dict[str, TaskFile] = {}
    for folder in folders:
        inside = os.path.join(folder, "tasks")
        names = sorted(os.listdir(inside)) if os.path.isdir(inside) else []
        tasks = [_read(os.path.join(inside, n)) for n in names if n.endswith(".yaml")]
        if not any(tasks):
            raise StageError(
                "bad_input", f"{inside} holds no task file *.yaml; rebuild the tasks artifact"
            )
        for task in filter(None, tasks):
            if task.name in found:
                raise StageError(
                    "bad_input",
                    f"task {task.name!r} is in {task.path} and in {found[task.name].path}; "
                    "rename one of them",
                )
            found[task.name] = task
    missing = [name for name in wanted if name not in found]
    if missing:
        raise StageError(
            "bad_input",
            f"task {missing[0]!r} is in none of the tasks artifacts, which hold "
            f"{', '.join(found)}; correct the name or add its artifact",
        )
    return {name: found[name] for name in wanted or found}


def load_tasks(
    files: Mapping[str, TaskFile], work: str, num_fewshot: int | None, seed: int
) -> dict[str, Any]:
    """lm-eval's task dictionary; data sets are read from the artifacts and cached under `work`."""
    go_offline()
    from lm_eval.tasks import TaskManager

    folder = os.path.join(work, "tasks")
    os.makedirs(folder, exist_ok=True)
    for file in files.values():
        located = {
            "include": file.path,
            "task": file.name,
            "dataset_kwargs": {
                **file.options,
                "data_files": dict(file.data_files),
                "cache_dir": os.path.join(work, "datasets"),
            },
        }
        with open(os.path.join(folder, f"{file.name}.yaml"), "w", encoding="utf-8") as target:
            json.dump(located, target)  # JSON is YAML
    loaded = TaskManager(include_path=folder, include_defaults=False).load(list(files))
    for task in loaded["tasks"].values():
        if num_fewshot is not None:
            task.set_config(key="num_fewshot", value=num_fewshot)
        elif task.get_config("num_fewshot") is None:
            task.set_config(key="num_fewshot", value=0)
        task.set_fewshot_seed(seed=seed)
    return dict(loaded)


def choose_examples(
    loaded: Mapping[str, Any], limit: int | None, seed: int
) -> dict[str, list[int]]:
    """Indices of the examples to score per task: all, or a seeded random subset, in file order."""
    import numpy as np
    import xxhash

    chosen = {}
    for name, task in loaded["tasks"].items():
        size = len(task.eval_docs)
        if size == 0:
            raise StageError("bad_input", f"task {name!r} has 0 examples; rebuild its artifact")
        key = xxhash.xxh3_128_intdigest(f"{seed}/{name}".encode())
        order = np.argsort(np.random.Philox(key=key).random_raw(size), kind="stable")
        chosen[name] = sorted(order[:limit].tolist())
    return chosen


def go_offline() -> None:
    """Keeps Hugging Face's libraries from the network, and lm-eval from forking beside JAX."""
    os.environ["HF_HUB_OFFLINE"] = os.environ["HF_DATASETS_OFFLINE"] = "1"
    os.environ["DISABLE_MULTIPROC"] = "1"
    import datasets.config
    import huggingface_hub.constants

    datasets.config.HF_HUB_OFFLINE = True
    huggingface_hub.constants.HF_HUB_OFFLINE = True


def _read(path: str) -> TaskFile | None:
    """A task file, or None for a YAML file that defines no task of its own."""
    import yaml

    class Loader(yaml.SafeLoader):
        """Reads what lm-eval's own tags, such as `!function`, say as plain text."""

    Loader.add_multi_constructor("!", lambda loader, suffix, node: node.value)
    with open(path, encoding="utf-8") as file:
        content = yaml.load(file, Loader)
    if not isinstance(content, dict) or not isinstance(content.get("task"), str):
        return None
    name = content["task"]
    options = dict(content.get("dataset_kwargs") or {})
    files = options.pop("data_files", None)
    if content.get("dataset_path") != "json" or not files:
        raise StageError(
            "bad_input",
            f"task {name!r} in {path} has dataset_path={content.get('dataset_path')!r} and "
            f"data_files={files!r}, so its data is not in the artifact; use dataset_path: json "
            "and dataset_kwargs: data_files with paths beside the YAML file",
        )
    by_split = files if isinstance(files, dict) else {"train": files}
    absolute: dict[str, list[str]] = {}
    for split, names in by_split.items():
        relative = [names] if isinstance(names, str) else list(names)
        absolute[split] = [os.path.join(os.path.dirname(path), item) for item in relative]
        for item in absolute[split]:
            if not os.path.isfile(item):
                raise StageError(
                    "bad_input",
                    f"task {name!r} reads {item}, which is missing; rebuild the tasks artifact",
                )
    return TaskFile(name, path, absolute, options)
