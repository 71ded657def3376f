"""Turns a recipe's class into what its build executes: digests of our modules, library versions."""

import ast
import functools
import hashlib
import importlib.metadata
import importlib.util
import threading
from collections.abc import Iterator
from pathlib import Path

from marin_dagster.recipe import Recipe

# The machinery around a build; its format has a version of its own, in the record.
MACHINERY = (
    *("recipe", "kinds", "code", "record", "attempt", "context", "store", "plan", "publish"),
    "environment",
)

_PARSER = threading.Lock()  # CPython 3.11 counts one depth for the parsers of all threads


def code_digests(recipe: Recipe) -> dict[str, str]:
    """Returns {module: digest} of every module of ours that a build of the recipe may execute.

    Follows the import statements, also those inside functions, within the packages that define
    the recipe and its values, and within this one. Comments, docstrings and layout do not count.
    """
    return dict(sorted(_closure(recipe.modules)[0]))


def code_digest(recipe: Recipe) -> str:
    """Eight hex digits that name all of that code together."""
    text = "\n".join(f"{name} {digest}" for name, digest in code_digests(recipe).items())
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def library_versions(recipe: Recipe) -> dict[str, str]:
    """Returns {distribution: version} of the libraries that those modules import."""
    return dict(_versions(recipe.modules))


@functools.lru_cache(maxsize=256)
def _versions(modules: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    names = _distributions()
    found = {dist for top in _closure(modules)[1] for dist in names.get(top, ())}
    return tuple((dist, importlib.metadata.version(dist)) for dist in sorted(found))


@functools.lru_cache(maxsize=256)
def _closure(start: tuple[str, ...]) -> tuple[tuple[tuple[str, str], ...], frozenset[str]]:
    roots = {"marin_dagster", *(name.partition(".")[0] for name in start)}
    skipped = {f"marin_dagster.{name}" for name in MACHINERY}
    digests: dict[str, str] = {}
    libraries: set[str] = set()
    pending = list(start)
    while pending:
        module = pending.pop()
        if module in digests or module in skipped:
            continue
        parsed = _parse(module)
        if parsed is None:
            continue
        digests[module], imported = parsed
        for name in imported:
            if name.partition(".")[0] in roots:
                pending.append(name)
            else:
                libraries.add(name.partition(".")[0])
    return tuple(digests.items()), frozenset(libraries)


@functools.lru_cache(maxsize=1024)
def _parse(module: str) -> tuple[str, tuple[str, ...]] | None:
    """Returns a module's digest and the names it imports; None when it has no source file."""
    path = _file(module)
    if path is None:
        return None
    with _PARSER:
        tree = ast.parse(path.read_bytes())
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    imported = tuple(_imports(tree, package))
    for node in ast.walk(tree):
        _drop_docstring(node)
    return hashlib.sha256(ast.unparse(tree).encode()).hexdigest()[:12], imported


def _file(module: str) -> Path | None:
    """Finds a module's source without importing it or its packages."""
    top, *parts = module.split(".")
    origin, folders = _place(top)
    candidates = [] if parts or origin is None else [Path(origin)]
    for folder in folders if parts else ():
        path = Path(folder, *parts)
        candidates += [path.with_suffix(".py"), path / "__init__.py"]
    for candidate in candidates:
        if candidate.suffix == ".py" and candidate.is_file():
            return candidate
    return None


@functools.lru_cache(maxsize=64)
def _place(package: str) -> tuple[str | None, tuple[str, ...]]:
    """Where a top-level module or package lies: its own file, and the folders of its parts."""
    try:
        spec = importlib.util.find_spec(package)
    except ValueError:  # `__main__` has no spec
        return None, ()
    if spec is None:
        return None, ()
    return spec.origin, tuple(spec.submodule_search_locations or ())


def _imports(tree: ast.AST, package: str) -> Iterator[str]:
    """Yields what a module imports; `package` is the one that its relative imports start from."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, *filter(None, [base])])
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def _drop_docstring(node: ast.AST) -> None:
    if not isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
        return
    first = node.body[0] if node.body else None
    if (
        isinstance(first, ast.Expr)
        and isinstance(first.value, ast.Constant)
        and isinstance(first.value.value, str)
    ):
        node.body = node.body[1:] or [ast.Pass()]


@functools.lru_cache(maxsize=1)
def _distributions() -> dict[str, list[str]]:
    return {
        name: list(found) for name, found in importlib.metadata.packages_distributions().items()
    }
