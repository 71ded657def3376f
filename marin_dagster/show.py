"""Turns plans and records into lines for a terminal."""

import time
from collections.abc import Iterator, Mapping, Sequence

from marin_dagster.attempt import process_is_gone
from marin_dagster.plan import REUSE, Step, compare, describe
from marin_dagster.recipe import Recipe, StageError
from marin_dagster.record import Record
from marin_dagster.store import Store
from marin_dagster.versions import Comparison, compare_versions


def plan_lines(steps: Mapping[str, Step], targets: Sequence[Recipe]) -> Iterator[str]:
    """The plan as a tree under each target, then the sum of what will run."""
    seen: set[str] = set()
    for target in targets:
        yield from _branch(steps, target, "", "", seen)
    todo = [step for step in steps.values() if step.runs]
    reused = sum(step.judgement.action == REUSE for step in steps.values())
    yield f"\n{len(todo)} to run, {reused} to reuse"
    total: dict[str, float] = {}
    for step in todo:
        for unit, amount in step.estimate.cost.items():
            total[unit] = total.get(unit, 0.0) + amount
    if total:
        yield f"cost of the runs as far as known: {cost_line(total)}"
    times = [step.estimate.seconds for step in todo if step.estimate.seconds is not None]
    if times:
        rest = f", {len(todo) - len(times)} never timed" if len(times) < len(todo) else ""
        yield f"about {human_seconds(sum(times))} of work by earlier builds{rest}"


def cost_line(cost: Mapping[str, float]) -> str:
    """`1.2M tokens, 3.4T FLOPs, 5.6 MB`."""
    parts = []
    for unit, amount in cost.items():
        if unit == "bytes":
            parts.append(f"reads {human_bytes(amount)}")
        else:
            parts.append(f"{human_number(amount)} {'FLOPs' if unit == 'flops' else unit}")
    return ", ".join(parts)


def human_seconds(seconds: float) -> str:
    """`45 s`, `12 min`, `3.5 h`, `2.1 d`."""
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.2g} s"


def human_number(amount: float) -> str:
    size = amount
    for suffix in ("", "k", "M", "G", "T", "P", "E"):
        if abs(size) < 1000:
            return f"{size:.3g}{suffix}"
        size /= 1000
    return f"{amount:.3g}".replace("e+", "e")


def human_bytes(amount: float) -> str:
    return f"{human_number(amount)}B" if amount >= 1000 else f"{amount:.0f} B"


def age(when: float, to: str = "minutes") -> str:
    """`2026-11-30 12:00`, local time, to minutes or to seconds."""
    return time.strftime(f"%Y-%m-%d %H:%M{':%S' if to == 'seconds' else ''}", time.localtime(when))


def artifact_state(store: Store, recipe: Recipe) -> tuple[str, str, Record | None]:
    """Returns (state, notes, record) of one artifact, for a list of them."""
    try:
        record = store.record(recipe)
    except StageError as error:
        return "damaged", error.message, None
    last = store.last_attempt(recipe)
    if record is None:
        if last is None:
            return "missing", "", None
        if last.state == "running" and process_is_gone(last):
            return "failed", f"attempt {last.number}: killed", None
        if last.state == "running":
            state = "unknown" if store.is_silent(last) else "running"
            seen = age(last.heartbeat, "seconds")
            return state, f"attempt {last.number} on {last.host}, last seen {seen}", None
        return "failed", f"attempt {last.number}: {last.reason}: {last.message}"[:200], None
    notes = [str(item) for item in compare(store, recipe, record) if item.part != "library"]
    state = "drifted" if notes else "complete"
    if store.damage(recipe, record, checksums=False):
        state = "damaged"
    return state, "; ".join(notes[:3]), record


def artifact_lines(store: Store, recipe: Recipe) -> Iterator[str]:
    """Everything that is known of one artifact."""
    state, notes, record = artifact_state(store, recipe)
    yield f"{recipe.address}: {state}{f' ({notes})' if notes else ''}"
    yield f"  at           {store.url(recipe)}"
    yield f"  recipe       {type(recipe).__name__}, fingerprint {recipe.fingerprint}"
    for name, value in recipe.payload.items():
        if name != "recipe":
            yield f"    {name} = {_short(value)}"
    yield from _attempt_lines(store, recipe)
    if record is None:
        return
    yield f"  files        {len(record.files)}, {human_bytes(record.size_bytes)}"
    yield f"  data         {store.data_url(recipe, record)}"
    yield f"  made         {age(record.ended)} in {record.seconds:.1f} s by {_who(record)}"
    if record.adopted is not None:
        yield f"  adopted      from {record.adopted['source']} by {record.adopted['by']}"
    yield f"  command      {record.provenance.get('command')}"
    yield f"  run          {record.run_id or 'outside Dagster'}"
    for item in record.inputs:
        yield f"  input        {item.address} ({item.digest})"
    counts = record.summary.counts
    if counts is not None:
        yield f"  {counts.unit}: read {counts.read:,} = kept {counts.kept:,}" + "".join(
            f" + {reason} {number:,}"
            for reason, number in (*counts.dropped.items(), *counts.errors.items())
        )
    for name, value in record.summary.numbers.items():
        yield f"    {name} = {value:.6g}" if isinstance(value, float) else f"    {name} = {value}"
    yield from _previous_line(compare_versions(store, recipe, record))
    yield "  libraries    " + ", ".join(f"{k} {v}" for k, v in record.libraries.items())


def _branch(
    steps: Mapping[str, Step], recipe: Recipe, stem: str, branch: str, seen: set[str]
) -> Iterator[str]:
    step = steps.get(recipe.address)
    if step is None:
        return
    repeated = recipe.address in seen
    seen.add(recipe.address)
    cost = "" if repeated else _estimate_line(step)
    what = "see above" if repeated else describe(step.judgement)
    yield f"{stem}{branch}{recipe.address}  {what}{cost}"
    if repeated:
        return
    below = stem + {"": "", "├─ ": "│  ", "└─ ": "   "}[branch]
    children = [item for item in recipe.needs if item.address in steps]
    for number, child in enumerate(children):
        mark = "└─ " if number == len(children) - 1 else "├─ "
        yield from _branch(steps, child, below, mark, seen)


def _estimate_line(step: Step) -> str:
    seconds = step.estimate.seconds
    time_left = f"about {human_seconds(seconds)}" if seconds is not None else ""
    parts = filter(None, [cost_line(step.estimate.cost), time_left])
    text = ", ".join(parts)
    return f"  [{text}]" if text else ""


def _attempt_lines(store: Store, recipe: Recipe) -> Iterator[str]:
    for info in store.attempts(recipe):
        end = f"{info.ended - info.started:.1f} s" if info.ended else "still going"
        log = f"\n               log {store.log_url(recipe, info.number)}"
        why = f", {info.reason}: {info.message}{log}" if info.reason else ""
        yield f"  attempt {info.number}    {info.state} on {info.host}, {end}{why}"


def _previous_line(comparison: Comparison) -> Iterator[str]:
    """The nearest older version, and the fields in which its recipe differs."""
    previous = comparison.previous
    if previous is not None:
        rows = [
            f"{path}: {_short(old)} → {_short(new)}"
            for path, old, new in comparison.differences(previous)
        ]
        yield f"  previous     {previous.recipe.version}: {'; '.join(rows) or 'the same recipe'}"


def _who(record: Record) -> str:
    git = record.provenance.get("git")
    commit = (
        f" at {git['commit'][:10]}{' with local changes' if git['dirty'] else ''}" if git else ""
    )
    return f"{record.provenance.get('user')} on {record.provenance.get('host')}{commit}"


def _short(value) -> str:
    text = str(value)
    return text if len(text) <= 200 else f"{text[:200]}…"
