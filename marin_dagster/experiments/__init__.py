"""Turns experiment modules, ours and those of other packages, into one catalog of recipes.

An experiment is a module with `VERSIONS` (calendar versions and `dev`) and a function
`experiment(version)` that returns its targets. One that also has `RECURS` gains versions over time,
whose list lies under the prefix. Other packages add theirs through the entry point group
`marin_dagster.experiments`.
"""

import importlib.metadata
import warnings
from collections.abc import Iterable, Mapping
from types import ModuleType

from marin_dagster.environment import read_environment
from marin_dagster.experiments.recurring import Recurrence, add_version, entries
from marin_dagster.recipe import Recipe, refuse_if_different, walk
from marin_dagster.storage import Storage

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


_loaded: list[dict[str, Recipe]] = []  # the catalog, once it was read
_owner: dict[str, str] = {}  # experiment of each address of the catalog


def catalog() -> dict[str, Recipe]:
    """Every recipe of every installed experiment, by address.

    A process reads it once: versions that are added later appear in processes that start later.
    """
    if not _loaded:
        modules = _modules()
        _loaded.append(collect(modules.items(), _added(modules), _owner))
    return _loaded[0]


def forget_catalog() -> None:
    """Makes `catalog` read the experiments again."""
    _loaded.clear()


def experiment_of(address: str) -> str:
    """The experiment that an artifact belongs to; of several, the first by name."""
    catalog()
    return _owner[address]


def recurring() -> dict[str, Recurrence]:
    """The experiments that recur, and when, by name."""
    found = {name: _recurrence(name, module) for name, module in _modules().items()}
    return {name: recurs for name, recurs in found.items() if recurs is not None}


def renew(
    name: str, *, version: str | None = None, occasion: str | None = None
) -> tuple[Recipe, ...]:
    """Adds a version to a recurring experiment; returns its targets. By default today's.

    With an occasion that was used before, adds nothing and returns that version's targets. Raises
    ValueError when the experiment does not recur, or fails for the version.
    """
    module = _modules().get(name)
    recurs = _recurrence(name, module) if module else None
    if module is None:
        known = ", ".join(_modules())
        raise ValueError(f"experiment={name!r} is not installed; there are {known}")
    if recurs is None:
        raise ValueError(
            f"experiment={name!r} is not one of those that recur ({', '.join(recurring())}); "
            "define RECURS in its module, or add the version to VERSIONS there"
        )
    today = recurs.today()
    _recipes(name, module, version or today)  # a version that fails would stop every later load
    made = add_version(
        _storage(), name, today=today, taken=module.VERSIONS, version=version, occasion=occasion
    )
    forget_catalog()
    return module.experiment(made)


def collect(
    modules: Iterable[tuple[str, ModuleType]],
    added: Mapping[str, tuple[str, ...]] | None = None,
    owner: dict[str, str] | None = None,
) -> dict[str, Recipe]:
    """Returns the recipes of the given (name, module) experiments, by address.

    `added` are versions besides those of the modules, by name. Fills `owner` with the experiment
    of each address.

    Raises ValueError, naming the experiment, when a module is not one, when its recipes cannot be
    made, or when two experiments claim one address with different recipes.
    """
    found: dict[str, Recipe] = {}
    owner = {} if owner is None else owner
    for name, module in modules:
        for version in (*_versions(name, module), *(added or {}).get(name, ())):
            for address, recipe in _recipes(name, module, version).items():
                first = owner.setdefault(address, name)
                try:
                    refuse_if_different(found.setdefault(address, recipe), recipe)
                except ValueError as error:
                    raise ValueError(f"experiments {first!r} and {name!r}: {error}") from error
    return found


def _modules() -> dict[str, ModuleType]:
    points = sorted(importlib.metadata.entry_points(group=GROUP), key=lambda point: point.name)
    return {point.name: _load(point) for point in points}


def _recurrence(name: str, module: ModuleType) -> Recurrence | None:
    recurs = getattr(module, "RECURS", None)
    if recurs is not None and not isinstance(recurs, Recurrence):
        raise ValueError(
            f"RECURS={recurs!r} of experiment {name!r} ({module.__name__}) is not a Recurrence; "
            'write RECURS = Recurrence(cron="0 2 * * *")'
        )
    return recurs


def _added(modules: Mapping[str, ModuleType]) -> dict[str, tuple[str, ...]]:
    """The versions under the prefix; a list that cannot be read is told and left out."""
    found = {}
    for name, module in modules.items():
        if _recurrence(name, module) is not None:
            try:
                found[name] = tuple(entry.version for entry in entries(_storage(), name))
            except FAULTS as error:
                warnings.warn(
                    f"experiment {name!r} is loaded without the versions that it gained: {error}",
                    stacklevel=2,
                )
    return found


def _storage() -> Storage:
    return Storage(read_environment().prefix)


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
        makes = [made for recipe in walk(targets).values() for made in recipe.makes]
        recipes = walk([*targets, *makes])
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
