"""Turns a stage and its recipes into links from Dagster to their code."""

import re
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import dagster as dg

from marin_dagster.environment import checkout, read_environment
from marin_dagster.recipe import Recipe

Reference = dg.LocalFileCodeReference | dg.UrlCodeReference


def code_references(stage: str, recipes: Iterable[Recipe]) -> dg.CodeReferencesMetadataValue:
    """The asset's file and the class of every recipe that a partition is made by.

    Files of this repository lead to `MARIN_REPOSITORY_URL`, if that is set, others to the disk.
    """
    found = [_reference(str(Path(__file__).with_name(f"{stage}.py")), 1, f"asset {stage}")]
    for kind in dict.fromkeys(type(recipe) for recipe in recipes):
        path = sys.modules[kind.__module__].__file__
        if path is not None:
            line = _line(_text(path), kind.__name__)
            found.append(_reference(path, line, f"recipe {kind.__name__}"))
    return dg.CodeReferencesMetadataValue(code_references=found)


def _reference(path: str, line: int, label: str) -> Reference:
    base = read_environment().repository_url
    if base and Path(path).is_relative_to(checkout()):
        relative = Path(path).relative_to(checkout()).as_posix()
        return dg.UrlCodeReference(url=f"{base.rstrip('/')}/{relative}#L{line}", label=label)
    return dg.LocalFileCodeReference(file_path=path, line_number=line, label=label)


@cache
def _text(path: str) -> str:
    return Path(path).read_text(encoding="utf-8")


def _line(text: str, name: str) -> int:
    found = re.search(rf"^class {name}\b", text, re.MULTILINE)
    return text[: found.start()].count("\n") + 1 if found else 1
