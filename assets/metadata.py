"""Turns a record into what the Dagster UI shows of a materialization, and into checks."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import dagster as dg

from marin_dagster.experiments import catalog
from marin_dagster.plots import sketch
from marin_dagster.recipe import Recipe
from marin_dagster.record import Record
from marin_dagster.store import Outcome, Store
from marin_dagster.training.tracker import WANDB_FOLDER
from marin_dagster.versions import Comparison, Version, compare_versions

TABLE_ROWS = 30
SVG_CHARACTERS = " ='/:.,-()+;"  # that need no escape in the address of an image
INLINE_CHARACTERS = 1_000  # the UI shows Markdown that is as long or longer behind a click


def of(store: Store, recipe: Recipe, outcome: Outcome) -> dict[str, Any]:
    """Numbers to plot, counts, tables, plots, comparisons, links to what is near, and paths."""
    record = outcome.record
    summary = record.summary
    found: dict[str, Any] = dict(summary.numbers)
    if summary.counts is not None:
        found["counts"] = dg.MetadataValue.md(_counts(summary.counts))
        found["dagster/row_count"] = summary.counts.kept
    found |= _plots(store.localize(recipe, record), record)
    for title, rows in summary.tables.items():
        found[title] = shown(rows)
    for title, text in summary.notes.items():
        found[title] = dg.MetadataValue.md(text)
    found |= _drift(recipe, outcome)
    found |= _versions(compare_versions(store, recipe, record))
    if record.attempts:
        found["attempt history"] = shown(_attempt_rows(record))
    return {
        **found,
        **_places(store, recipe, record),
        "fingerprint": record.fingerprint,
        "reused": outcome.reused,
        "bytes": record.size_bytes,
        "files": len(record.files),
        "seconds": round(record.seconds, 2),
        "attempts": len(record.attempts) + 1,
    }


def _plots(folder: str, record: Record) -> dict[str, dg.MetadataValue]:
    """A small picture of every plot, and all of them large, behind a click."""
    found: dict[str, dg.MetadataValue] = {}
    large = []
    for title, name in record.plots.items():
        svg = Path(folder, name).read_text()
        image = f"![{title}](<data:image/svg+xml,{quote(svg, safe=SVG_CHARACTERS)}>)"
        large.append(image)
        found[title] = dg.MetadataValue.md(sketch(svg, INLINE_CHARACTERS) or image)
    if large:
        found["plots"] = dg.MetadataValue.md("\n\n".join(large))
    return found


def _drift(recipe: Recipe, outcome: Outcome) -> dict[str, dg.MetadataValue]:
    """What the check `up_to_date` warns of; the page of a partition shows no checks."""
    judged = outcome.judgement if outcome.reused else None
    changed = (*judged.drifted, *judged.stale) if judged else ()
    if not changed:
        return {}
    text = "\n".join(f"- {_cell(item)[:200]}" for item in changed[:3])
    more = f"\n- and {len(changed) - 3} more" if len(changed) > 3 else ""
    head = f"**Not what would be built now** ([check]({_page(recipe.stage)}?view=checks))"
    return {"drift": dg.MetadataValue.md(f"{head}\n\n{text}{more}")}


def _versions(comparison: Comparison) -> dict[str, dg.MetadataValue]:
    """Links to other versions with the fields that differ, and the numbers side by side."""
    others = (*comparison.newer, *comparison.older)
    if not others:
        return {}
    rows = [
        {
            "version": _link(other.recipe, other.recipe.version),
            "recipe there → here": _differences(comparison, other),
        }
        for other in others
    ]
    return {
        "other versions": dg.MetadataValue.md(table(rows)),
        "numbers by version": shown(comparison.numbers()),
    }


def _differences(comparison: Comparison, other: Version) -> str:
    changes = [f"{path}: {old} → {new}" for path, old, new in comparison.differences(other)]
    more = f"; {len(changes) - 2} more" if len(changes) > 2 else ""
    return "; ".join(change[:70] for change in changes[:2]) + more or "the same"


def _places(store: Store, recipe: Recipe, record: Record) -> dict[str, dg.MetadataValue]:
    """Where to go from here: inputs, reports, files, logs, the run at Weights & Biases."""
    reports = [
        reader
        for reader in catalog().values()
        if reader.stage == "reports" and recipe.address in {r.address for r in reader.inputs}
    ]
    found: dict[str, dg.MetadataValue] = {
        "inputs": dg.MetadataValue.md(_links(recipe.inputs)),
        "path": dg.MetadataValue.path(store.data_url(recipe, record)),
        "log": dg.MetadataValue.path(store.log_url(recipe, record.attempt)),
    }
    if reports:
        found["reports"] = dg.MetadataValue.md(_links(reports))
    page = [file.path for file in record.files if file.path == "index.html"]
    if page:
        found["page"] = dg.MetadataValue.path(f"{store.data_url(recipe, record)}/index.html")
    offline = Path(store.data_url(recipe, record), WANDB_FOLDER)
    if offline.is_dir():
        found["Weights & Biases, offline"] = dg.MetadataValue.path(str(offline))
    return found


def _attempt_rows(record: Record) -> list[dict[str, Any]]:
    """All tries at the artifact, the one that succeeded last."""
    rows = [
        {
            "attempt": tried["number"],
            "ended": tried["reason"] or tried["state"],
            "seconds": round((tried["ended"] or tried["heartbeat"]) - tried["started"], 1),
            "host": tried["host"],
            "message": (tried["message"] or "")[:120],
        }
        for tried in record.attempts
    ]
    last = {
        "attempt": record.attempt,
        "ended": "succeeded",
        "seconds": round(record.seconds, 1),
        "host": record.provenance.get("host", ""),
        "message": "",
    }
    return [*rows, last]


def up_to_date(outcome: Outcome) -> dg.AssetCheckResult:
    """Warns of drift (recipe or code changed) and of staleness (an input was rebuilt since)."""
    judged = outcome.judgement if outcome.reused else None
    drifted = judged.drifted if judged else ()
    stale = judged.stale if judged else ()
    found: dict[str, Any] = {"drifted": len(drifted), "stale": len(stale)}
    rows = [
        {"part": item.part, "field": item.field, "recorded": item.recorded, "now": item.current}
        for item in (*drifted, *stale)
    ]
    if rows:
        found["differences"] = _grid(rows)  # a check's page never shows Markdown at once
    return dg.AssetCheckResult(
        check_name="up_to_date",
        passed=not rows,
        severity=dg.AssetCheckSeverity.WARN,
        description="; ".join(map(str, (*drifted, *stale))) or None,
        metadata=found,
    )


def counts(outcome: Outcome) -> dg.AssetCheckResult:
    """Fails when nothing was kept or when the counts of the record do not balance."""
    found = outcome.record.summary.counts
    if found is None:
        return dg.AssetCheckResult(
            check_name="counts", passed=bool(outcome.record.files), metadata={"counted": False}
        )
    return dg.AssetCheckResult(
        check_name="counts",
        passed=found.balance == 0 and found.kept > 0,
        metadata={"read": found.read, "kept": found.kept, "unaccounted": found.balance},
    )


def link(recipe: Recipe) -> str:
    """A Markdown link to a partition's page; Dagster's own lineage is per asset."""
    return _link(recipe, recipe.address)


def _link(recipe: Recipe, text: str) -> str:
    key = quote(recipe.key, safe="")
    return f"[{text}]({_page(recipe.stage)}?view=partitions&partition={key})"


def _page(stage: str) -> str:
    return f"/assets/{stage}"


def partition_list(recipes: Iterable[Recipe]) -> str:
    """A Markdown table of the partitions of a stage: which recipe makes each."""
    rows = [
        {"partition": recipe.key, "recipe": type(recipe).__name__, "reads": _names(recipe.inputs)}
        for recipe in recipes
    ]
    return table(rows)


def shown(rows: Sequence[Mapping[str, Any]]) -> dg.MetadataValue:
    """Rows as the UI shows them at once: Markdown if it is short, else Dagster's own table."""
    text = table(rows)
    return dg.MetadataValue.md(text) if len(text) < INLINE_CHARACTERS else _grid(rows)


def _grid(rows: Sequence[Mapping[str, Any]]) -> dg.MetadataValue:
    """Dagster's own table: always shown, without links."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    cut = [{name: _cell(row.get(name, "")) for name in names} for row in rows[:TABLE_ROWS]]
    if len(rows) > TABLE_ROWS:
        cut.append(dict.fromkeys(names, "") | {names[0]: f"{len(rows) - TABLE_ROWS} more"})
    return dg.MetadataValue.table(
        records=[dg.TableRecord(row) for row in cut],
        schema=dg.TableSchema(columns=[dg.TableColumn(name) for name in names]),
    )


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """A Markdown table; long ones are cut and say so."""
    if not rows:
        return "_none_"
    names = list(dict.fromkeys(name for row in rows for name in row))
    lines = ["| " + " | ".join(names) + " |", "|" + " --- |" * len(names)]
    for row in rows[:TABLE_ROWS]:
        lines.append("| " + " | ".join(_cell(row.get(name, "")) for name in names) + " |")
    if len(rows) > TABLE_ROWS:
        lines.append(f"\n_{len(rows) - TABLE_ROWS} more rows_")
    return "\n".join(lines)


def _cell(value: Any) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return text.replace("|", "\\|").replace("\n", " ")[:300]


def _names(recipes: Sequence[Recipe]) -> str:
    return ", ".join(recipe.address for recipe in recipes) or "–"


def _links(recipes: Sequence[Recipe]) -> str:
    return "\n".join(f"- {link(recipe)}" for recipe in recipes) or "_none_"


def _counts(found) -> str:
    rows = [
        {"outcome": "read", found.unit: found.read},
        {"outcome": "kept", found.unit: found.kept},
        *({"outcome": f"dropped: {why}", found.unit: n} for why, n in found.dropped.items()),
        *({"outcome": f"error: {why}", found.unit: n} for why, n in found.errors.items()),
    ]
    return table(rows)
