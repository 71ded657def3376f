"""A context without a store: local folders, and inputs that were built before."""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from marin_dagster.recipe import Placement, Recipe, Summary


@dataclass
class FakeContext:
    """What a recipe's build gets, under one temporary folder."""

    recipe: Recipe
    root: Path
    placement: Placement = field(default_factory=lambda: Placement(workers=1))
    results: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    reports: list[tuple[float, float | None]] = field(default_factory=list)
    metrics: list[dict[str, float]] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)
    published: dict[str, Summary] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for folder in (self.out, self.work):
            Path(folder).mkdir(parents=True, exist_ok=True)

    @property
    def out(self) -> str:
        return self.path(self.recipe)

    @property
    def work(self) -> str:
        return str(self.root / "work" / self.recipe.address)

    def path(self, recipe: Recipe) -> str:
        return str(self.root / "artifacts" / recipe.address)

    def result(self, recipe: Recipe) -> Mapping[str, Any]:
        return self.results[recipe.address]

    def record(self, recipe: Recipe) -> Any:
        raise KeyError(recipe.address)

    def progress(
        self, done: float, total: float | None = None, unit: str = "documents", **metrics: float
    ) -> None:
        self.reports.append((done, total))
        self.metrics.append(metrics)

    def log(self, message: str) -> None:
        self.messages.append(message)

    def publish(self, recipe: Recipe, folder: str, summary: Summary) -> None:
        shutil.move(folder, self.path(recipe))
        self.published[recipe.address] = summary


def build(recipe: Recipe, root: Path, **fields: Any) -> Summary:
    """Builds a recipe whose inputs were built under the same root."""
    return recipe.build(FakeContext(recipe, root, **fields))
