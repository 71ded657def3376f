"""Turns recipes that will run into what they cost and how long they take, by earlier records."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING

from marin_dagster.recipe import Recipe, StageError

if TYPE_CHECKING:
    from marin_dagster.record import Record
    from marin_dagster.store import Store

SCALES = ("flops", "tokens", "bytes")  # the first that is known is what the time grows with
EARLIER = 5  # records that one estimate rests on, at most
LOOKED_AT = 20  # recipes whose records are looked for, at most


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """What running a recipe takes: tokens, flops and bytes read; seconds if it can be told."""

    cost: dict[str, float] = field(default_factory=dict)
    seconds: float | None = None


def estimate(
    store: Store, running: Iterable[Recipe], known: Iterable[Recipe]
) -> dict[str, Estimate]:
    """Estimates by address, for recipes in the order in which they will run.

    The time is that of earlier builds by the same class of recipe among `known`, those of the same
    name first, scaled by their recorded cost. Inputs that do not exist yet count with the size
    that they had in earlier builds.
    """
    alike: dict[type, list[Recipe]] = defaultdict(list)
    for recipe in known:
        alike[type(recipe)].append(recipe)
    sizes: dict[str, int] = {}
    found = {}
    for recipe in running:
        for item in recipe.inputs:
            record = None if item.address in sizes else _record(store, item)
            if record is not None:
                sizes[item.address] = record.size_bytes
        earlier = _earlier(store, recipe, alike[type(recipe)])
        inputs = {item.address for item in recipe.inputs}
        cost = recipe.cost({address: sizes[address] for address in inputs & sizes.keys()})
        found[recipe.address] = Estimate(cost=cost, seconds=_seconds(cost, earlier))
        if earlier:
            sizes[recipe.address] = int(median(record.size_bytes for record in earlier))
    return found


def _earlier(store: Store, recipe: Recipe, alike: list[Recipe]) -> list[Record]:
    def nearness(other: Recipe) -> tuple[bool, bool, str]:
        return other.address == recipe.address, other.name == recipe.name, other.version

    nearest = sorted(alike, key=nearness, reverse=True)[:LOOKED_AT]
    records = (_record(store, other) for other in nearest)
    return [record for record in records if record is not None][:EARLIER]


def _seconds(cost: dict[str, float], earlier: list[Record]) -> float | None:
    if not earlier:
        return None
    for scale in SCALES:
        paces = [
            record.seconds / record.cost[scale] for record in earlier if record.cost.get(scale)
        ]
        if paces and scale in cost:
            return median(paces) * cost[scale]
    return median(record.seconds for record in earlier)


def _record(store: Store, recipe: Recipe) -> Record | None:
    try:
        return store.record(recipe)
    except StageError:  # unreadable: nothing to learn from
        return None
