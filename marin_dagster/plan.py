"""Turns targets into a plan: for each artifact they need, reuse it or run it, and why."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from marin_dagster.attempt import process_is_gone
from marin_dagster.code import code_digests, library_versions
from marin_dagster.estimate import Estimate, estimate
from marin_dagster.recipe import DEV, Recipe, StageError, payload_diff, walk

if TYPE_CHECKING:
    from marin_dagster.record import Record
    from marin_dagster.store import Store

REUSE, RUN, DAMAGED = "reuse", "run", "damaged"


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One thing that an artifact was made with, and what it would be made with now."""

    part: str  # recipe | code | input | library
    field: str
    recorded: Any
    current: Any

    def __str__(self) -> str:
        return f"{self.part} {self.field}: {self.recorded} → {self.current}"


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """What will happen to one artifact, and why."""

    action: str  # reuse | run | damaged
    reason: str
    differences: tuple[Difference, ...] = ()

    @property
    def drifted(self) -> tuple[Difference, ...]:
        """Differences in recipe or code."""
        return tuple(item for item in self.differences if item.part in ("recipe", "code"))

    @property
    def stale(self) -> tuple[Difference, ...]:
        """Inputs that were rebuilt since."""
        return tuple(item for item in self.differences if item.part == "input")


@dataclass(frozen=True, kw_only=True)
class Step:
    """One artifact of a plan, and what running it takes."""

    recipe: Recipe
    judgement: Judgement
    estimate: Estimate = field(default_factory=Estimate)

    @property
    def runs(self) -> bool:
        return self.judgement.action == RUN


def plan(
    store: Store,
    targets: Iterable[Recipe],
    *,
    force: bool = False,
    known: Iterable[Recipe] = (),
) -> dict[str, Step]:
    """Returns the steps that the targets need by address, inputs first; runs nothing.

    Walks up from the targets and stops at complete artifacts. `force` runs the targets anyway.
    The records of `known` recipes tell how long the steps will take.
    """
    targets = list(targets)
    order = walk(targets)  # refuses two recipes at one address
    forced = {_forceable(target).address for target in targets} if force else set()
    judged: dict[str, Judgement] = {}
    while True:
        needed = _needed(store, targets, judged, forced)
        if not _pass_on_rebuilds(order, needed, judged):
            break  # else something that seemed complete will run, and may need more inputs
    _pass_on_makers(order, needed, judged)
    recipes = [recipe for address, recipe in order.items() if address in needed]
    running = [recipe for recipe in recipes if judged[recipe.address].action == RUN]
    costs = estimate(store, running, known)
    return {
        recipe.address: Step(
            recipe=recipe,
            judgement=judged[recipe.address],
            estimate=costs.get(recipe.address, Estimate()),
        )
        for recipe in recipes
    }


def _needed(
    store: Store, targets: list[Recipe], judged: dict[str, Judgement], forced: set[str]
) -> set[str]:
    """Addresses that the targets need; judges those that `judged` does not hold yet."""
    found: set[str] = set()
    pending = list(targets)
    while pending:
        recipe = pending.pop()
        if recipe.address in found:
            continue
        found.add(recipe.address)
        if recipe.address not in judged:
            judged[recipe.address] = judge(store, recipe, force=recipe.address in forced)
        if judged[recipe.address].action == RUN:
            pending += recipe.needs
        elif recipe.version == DEV:  # an absent input matters only to an artifact that will run
            pending += (item for item in recipe.inputs if _readable(store, item) is not None)
    return found


def _pass_on_rebuilds(
    order: dict[str, Recipe], needed: set[str], judged: dict[str, Judgement]
) -> bool:
    """Runs the `dev` artifacts whose inputs will be rebuilt; returns whether there are any."""
    changed = False
    for address, recipe in order.items():
        if address not in needed or judged[address].action != REUSE or recipe.version != DEV:
            continue
        rebuilt = [
            item.address
            for item in recipe.inputs
            if item.address in needed and judged[item.address].action == RUN
        ]
        if rebuilt:
            reason = f"its input {rebuilt[0]} will be rebuilt"
            judged[address] = replace(judged[address], action=RUN, reason=reason)
            changed = True
    return changed


def _pass_on_makers(
    order: dict[str, Recipe], needed: set[str], judged: dict[str, Judgement]
) -> None:
    """Says of absent artifacts that others make on their way whether that will happen."""
    for address, recipe in order.items():
        if recipe.made_by is None or address not in needed or judged[address].action != RUN:
            continue
        maker = recipe.made_by.address
        if judged[maker].action == RUN:
            judged[address] = replace(judged[address], reason=f"made by {maker} on its way")
        else:
            gone = f"it is not there, and {maker}, which makes it on its way, is complete"
            judged[address] = replace(judged[address], action=DAMAGED, reason=gone)


def drift_behind(
    store: Store, targets: Iterable[Recipe], steps: Mapping[str, Step]
) -> dict[str, Judgement]:
    """Judges the complete artifacts that a plan did not have to look at; returns those that differ.

    They are upstream of complete artifacts, so nothing is run for them, but one should know.
    """
    found = {}
    for address, recipe in walk(targets).items():
        if address not in steps and _readable(store, recipe) is not None:
            judgement = judge(store, recipe)
            if judgement.drifted or judgement.stale:
                found[address] = judgement
    return found


def judge(store: Store, recipe: Recipe, *, force: bool = False) -> Judgement:
    """Decides on one artifact alone, from its record and the records of its inputs."""
    try:
        record = store.record(recipe)
    except StageError as error:  # there is one, and it cannot be read
        action, reason = (RUN, "forced") if force else (DAMAGED, error.message)
        return Judgement(action=action, reason=reason)
    if record is None:
        return Judgement(action=RUN, reason=_why_missing(store, recipe))
    differences = compare(store, recipe, record)
    if force:
        return Judgement(action=RUN, reason="forced", differences=differences)
    damage = store.damage(recipe, record, checksums=False)
    if damage:
        return Judgement(action=DAMAGED, reason="; ".join(damage[:3]), differences=differences)
    changed = [item for item in differences if item.part != "library"]
    if recipe.version == DEV and changed:
        return Judgement(action=RUN, reason=f"changed: {changed[0]}", differences=differences)
    return Judgement(action=REUSE, reason="complete", differences=differences)


def compare(store: Store, recipe: Recipe, record: Record) -> tuple[Difference, ...]:
    """Lists what differs between what an artifact was made with and what would make it now."""
    rows = [("recipe", *row) for row in payload_diff(dict(record.payload), recipe.payload)]
    code = code_digests(recipe) if record.adopted is None else {}
    for module in sorted({*record.code, *code}):
        rows.append(("code", module, record.code.get(module), code.get(module)))
    recorded = {item.address: item.digest for item in record.inputs}
    for item in recipe.inputs:
        now = _readable(store, item)
        if now is not None and item.address in recorded:
            rows.append(("input", item.address, recorded[item.address], now.digest))
    if record.libraries:
        current = library_versions(recipe)
        for name, version in record.libraries.items():
            rows.append(("library", name, version, current.get(name)))
    return tuple(
        Difference(part=part, field=name, recorded=old, current=new)
        for part, name, old, new in rows
        if old != new
    )


def describe(judgement: Judgement) -> str:
    """One line for people: `reuse, complete; DRIFT recipe num_steps: 20 → 25`."""
    text = f"{judgement.action}: {judgement.reason}"
    if judgement.action == REUSE:
        if judgement.drifted:
            text += f"; DRIFT {'; '.join(map(str, judgement.drifted))}"
        if judgement.stale:
            text += f"; STALE {'; '.join(map(str, judgement.stale))}"
    return text


def _forceable(target: Recipe) -> Recipe:
    if target.made_by is not None:
        raise ValueError(
            f"{target.address} cannot be forced: {target.made_by.address} makes it on its way; "
            f"build it again with `marin build {target.made_by.address} --run --force`"
        )
    return target


def _readable(store: Store, recipe: Recipe) -> Record | None:
    """The record of an artifact; None when there is none, or one that cannot be read."""
    try:
        return store.record(recipe)
    except StageError:
        return None


def _why_missing(store: Store, recipe: Recipe) -> str:
    last = store.last_attempt(recipe)
    if last is None:
        return "never built"
    if last.state == "running" and process_is_gone(last):
        return f"attempt {last.number} was killed"
    if last.state == "running":
        return f"attempt {last.number} is running on {last.host} (process {last.pid})"
    return f"attempt {last.number} failed ({last.reason})"
