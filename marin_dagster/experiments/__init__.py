"""Turns experiment modules, ours and those of other packages, into one catalog of recipes.

An experiment is a module with `VERSIONS` (calendar versions and `dev`) and a function
`experiment(version)` that returns its targets. Other packages add theirs through the entry point
group `marin_dagster.experiments`.
"""

import functools
import importlib.metadata
from collections.abc import Iterable
from types import ModuleType

from marin_dagster.recipe import Recipe, refuse_if_different, walk

GROUP = "marin_dagster.experiments"


@functools.lru_cache(maxsize=1)
def catalog() -> dict[str, Recipe]:
    """Every recipe of every installed experiment, by address."""
    points = sorted(importlib.metadata.entry_points(group=GROUP), key=lambda point: point.name)
    return collect((point.name, _load(point)) for point in points)


def _load(point: importlib.metadata.EntryPoint) -> ModuleType:
    try:
        return point.load()
    except ImportError as error:
        raise ValueError(
            f"experiment {point.name!r} ({point.value}) cannot be imported: {error}; repair it or "
            "uninstall its package"
        ) from error


def collect(modules: Iterable[tuple[str, ModuleType]]) -> dict[str, Recipe]:
    """Returns the recipes of the given (name, module) experiments, by address.

    Raises ValueError, naming the experiment, when a module is not one, or when two experiments
    claim one address with different recipes.
    """
    found: dict[str, Recipe] = {}
    owner: dict[str, str] = {}
    for name, module in modules:
        if not hasattr(module, "VERSIONS") or not hasattr(module, "experiment"):
            raise ValueError(
                f"experiment {name!r} ({module.__name__}) lacks VERSIONS or experiment(version); "
                "define both"
            )
        for version in module.VERSIONS:
            for address, recipe in walk(module.experiment(version)).items():
                first = owner.setdefault(address, name)
                try:
                    refuse_if_different(found.setdefault(address, recipe), recipe)
                except ValueError as error:
                    raise ValueError(f"experiments {first!r} and {name!r}: {error}") from error
    return found


def find(target: str) -> Recipe:
    """The recipe at an address; raises ValueError with the nearest ones when there is none."""
    recipes = catalog()
    if target in recipes:
        return recipes[target]
    raise ValueError(unknown_target(target, recipes))


def unknown_target(target: str, known: Iterable[str]) -> str:
    import difflib

    known = sorted(known)
    near = difflib.get_close_matches(target, known, n=3, cutoff=0.4)
    hint = f"did you mean {' or '.join(near)}?" if near else "`marin status` lists all"
    return (
        f"target={target!r} is not an artifact of any experiment (write stage/name@version); {hint}"
    )
