"""Turns what a person writes, addresses and shell patterns, into recipes of the catalog."""

import fnmatch
from collections.abc import Iterable

from marin_dagster.experiments import catalog, find
from marin_dagster.recipe import Recipe


def resolve(targets: Iterable[str]) -> tuple[Recipe, ...]:
    """The recipes at the given addresses, and those whose address matches a pattern, each once.

    `evals/*@2026.*` is a pattern; the order is that of the targets, then that of the catalog.
    Raises ValueError for an unknown address and for a pattern that matches nothing.
    """
    found: dict[str, Recipe] = {}
    for target in targets:
        found.update((recipe.address, recipe) for recipe in _matching(target))
    return tuple(found.values())


def _matching(target: str) -> list[Recipe]:
    if not set(target) & set("*?["):
        return [find(target)]
    recipes = [recipe for key, recipe in catalog().items() if fnmatch.fnmatchcase(key, target)]
    if not recipes:
        raise ValueError(
            f"pattern={target!r} matches none of {len(catalog())} artifacts; "
            "`marin status` lists all"
        )
    return recipes
