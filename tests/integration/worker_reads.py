"""Reads an artifact in a worker that is made the way the data stages make theirs."""

from functools import partial
from pathlib import Path

from marin_dagster.data.pipeline import run_tasks
from marin_dagster.recipe import Recipe
from marin_dagster.store import Store
from tests.fake_context import FakeContext


class Copy:
    """A step of a datatrove pipeline that copies an artifact's words."""

    def __init__(self, prefix: str, cache: str, recipe: Recipe, target: str):
        self.prefix, self.cache, self.recipe, self.target = prefix, cache, recipe, target

    def __call__(self, data, rank: int = 0, world_size: int = 1):
        _, folder = Store(self.prefix, cache=self.cache).read_input(self.recipe)
        Path(self.target).write_text(Path(folder, "words.txt").read_text())
        yield from data or ()


def pipeline(*fields) -> list:
    return [Copy(*fields)]


def read_in_workers(store: Store, recipe: Recipe, folder: Path) -> str:
    target = folder / "words.txt"
    make = partial(pipeline, store.prefix, str(folder / "worker-cache"), recipe, str(target))
    run_tasks(FakeContext(recipe, folder), str(folder / "work"), make, 1)
    return target.read_text()
