"""Turns a record into what the Dagster UI shows of a materialization, and into checks."""

import base64
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import dagster as dg

from marin_dagster.recipe import Recipe
from marin_dagster.store import Outcome, Store

TABLE_ROWS = 30


def of(store: Store, recipe: Recipe, outcome: Outcome) -> dict[str, Any]:
    """Numbers to plot, counts, tables, inline plots, links to the exact inputs, and the path."""
    record = outcome.record
    summary = record.summary
    found: dict[str, Any] = dict(summary.numbers)
    if summary.counts is not None:
        found["counts"] = dg.MetadataValue.md(_counts(summary.counts))
        found["dagster/row_count"] = summary.counts.kept
    folder = store.localize(recipe, record)
    for title, name in record.plots.items():
        svg = Path(folder, name).read_bytes()
        image = base64.b64encode(svg).decode()
        found[title] = dg.MetadataValue.md(f"![{title}](data:image/svg+xml;base64,{image})")
    for title, rows in summary.tables.items():
        found[title] = dg.MetadataValue.md(table(rows))
    for title, text in summary.notes.items():
        found[title] = dg.MetadataValue.md(text)
    return {
        **found,
        "inputs": dg.MetadataValue.md(_links(recipe.inputs)),
        "path": dg.MetadataValue.path(store.data_url(recipe, record)),
        "log": dg.MetadataValue.path(store.log_url(recipe, record.attempt)),
        "fingerprint": record.fingerprint,
        "reused": outcome.reused,
        "bytes": record.size_bytes,
        "files": len(record.files),
        "seconds": round(record.seconds, 2),
        "attempts": len(record.attempts) + 1,
    }


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
        found["differences"] = dg.MetadataValue.md(table(rows))
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
    key = quote(recipe.key, safe="")
    return f"[{recipe.address}](/assets/{recipe.stage}?view=partitions&partition={key})"


def partition_list(recipes: Iterable[Recipe]) -> str:
    """A Markdown table of the partitions of a stage: which recipe makes each."""
    rows = [
        {"partition": recipe.key, "recipe": type(recipe).__name__, "reads": _names(recipe.inputs)}
        for recipe in recipes
    ]
    return table(rows)


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
