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
# What the code of somebody else may raise; one package must not take the others down nameless.
FAULTS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    NameError,
    OSError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
)


_owner: dict[str, str] = {}  # experiment of each address of the catalog


@functools.lru_cache(maxsize=1)
def catalog() -> dict[str, Recipe]:
    """Every recipe of every installed experiment, by address."""
    points = sorted(importlib.metadata.entry_points(group=GROUP), key=lambda point: point.name)
    return collect(((point.name, _load(point)) for point in points), _owner)


def experiment_of(address: str) -> str:
    """The experiment that an artifact belongs to; of several, the first by name."""
    catalog()
    return _owner[address]


def collect(
    modules: Iterable[tuple[str, ModuleType]], owner: dict[str, str] | None = None
) -> dict[str, Recipe]:
    """Returns the recipes of the given (name, module) experiments, by address.

    Fills `owner` with the experiment of each address. Raises ValueError, naming the experiment,
    when a module is not one, when its recipes cannot be made, or when two experiments claim one
    address with different recipes.
    """
    found: dict[str, Recipe] = {}
    owner = {} if owner is None else owner
    for name, module in modules:
        for version in _versions(name, module):
            for address, recipe in _recipes(name, module, version).items():
                first = owner.setdefault(address, name)
                try:
                    refuse_if_different(found.setdefault(address, recipe), recipe)
                except ValueError as error:
                    raise ValueError(f"experiments {first!r} and {name!r}: {error}") from error
    return found


def _load(point: importlib.metadata.EntryPoint) -> ModuleType:
    try:
        return point.load()
    except FAULTS as error:
        raise ValueError(
            f"experiment {point.name!r} ({point.value}) cannot be imported: "
            f"{type(error).__name__}: {error}; repair it or uninstall its package"
        ) from error


def _versions(name: str, module: ModuleType) -> tuple[str, ...]:
    versions = getattr(module, "VERSIONS", None)
    if not isinstance(versions, tuple) or not hasattr(module, "experiment"):
        raise ValueError(
            f"experiment {name!r} ({module.__name__}) lacks VERSIONS, a tuple of versions, or "
            "experiment(version), which returns its targets; define both"
        )
    return versions


def _recipes(name: str, module: ModuleType, version: str) -> dict[str, Recipe]:
    """The recipes of one version, each with a fingerprint, so that a bad field shows here."""
    try:
        targets = module.experiment(version)
        if not isinstance(targets, tuple) or not all(isinstance(t, Recipe) for t in targets):
            raise TypeError(f"it returned {targets!r:.100}, which is not a tuple of recipes")
        recipes = walk(targets)
        for recipe in recipes.values():
            assert recipe.fingerprint
    except FAULTS as error:
        raise ValueError(
            f"experiment {name!r} ({module.__name__}) fails for version {version!r}: "
            f"{type(error).__name__}: {error}"
        ) from error
    return recipes


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
