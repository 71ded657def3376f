"""Turns an artifact into a comparison with the other complete versions of its name."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from marin_dagster.experiments import catalog
from marin_dagster.recipe import DEV, Recipe, StageError, payload_diff
from marin_dagster.record import Record
from marin_dagster.store import Store

OLDER, NEWER = 3, 1  # versions to compare with
LOOKED_AT = 12  # versions on each side, complete or not


@dataclass(frozen=True, kw_only=True)
class Version:
    """A complete artifact."""

    recipe: Recipe
    record: Record


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One version beside the nearest complete ones of the same stage and name."""

    this: Version
    older: tuple[Version, ...]  # the nearest first
    newer: tuple[Version, ...]

    @property
    def previous(self) -> Version | None:
        return self.older[0] if self.older else None

    def numbers(self) -> list[dict[str, Any]]:
        """A row for each number: this version, then the older and the newer ones."""
        columns = (self.this, *self.older, *self.newer)
        names = dict.fromkeys(name for one in columns for name in one.record.summary.numbers)
        return [
            {"number": name}
            | {one.recipe.version: one.record.summary.numbers.get(name, "") for one in columns}
            for name in names
        ]

    def differences(self, other: Version) -> list[tuple[str, Any, Any]]:
        """(field, of the other, of this) where the recorded recipes differ."""
        return payload_diff(dict(other.record.payload), dict(self.this.record.payload))


def compare_versions(store: Store, recipe: Recipe, record: Record) -> Comparison:
    """Reads the records of at most `OLDER` + `NEWER` versions beside this one; no other files.

    `dev` counts as the newest version.
    """
    others = [
        other
        for other in catalog().values()
        if other.stage == recipe.stage and other.name == recipe.name
    ]
    others.sort(key=_order)
    place = [other.version for other in others].index(recipe.version)
    return Comparison(
        this=Version(recipe=recipe, record=record),
        older=_complete(store, others[:place][::-1], OLDER),
        newer=_complete(store, others[place + 1 :], NEWER),
    )


def _complete(store: Store, recipes: Sequence[Recipe], limit: int) -> tuple[Version, ...]:
    return tuple(islice(_records(store, recipes[:LOOKED_AT]), limit))


def _records(store: Store, recipes: Iterable[Recipe]) -> Iterator[Version]:
    for recipe in recipes:
        try:
            record = store.record(recipe)
        except StageError:  # one that cannot be read is no version to compare with
            continue
        if record is not None:
            yield Version(recipe=recipe, record=record)


def _order(recipe: Recipe) -> tuple[int, ...]:
    """Calendar order; `dev` last."""
    if recipe.version == DEV:
        return (10_000,)
    return tuple(int(part) for part in recipe.version.split("."))
