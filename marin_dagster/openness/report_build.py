"""Turns records into the rows of a page, and the page into `index.html`."""

import base64
import datetime
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jinja2
import markupsafe

from marin_dagster.kinds import Checkpoint, EvalReport
from marin_dagster.openness.lineage import lineage_svg
from marin_dagster.openness.report import ExperimentReport
from marin_dagster.openness.report_page import STYLE, TEMPLATE
from marin_dagster.recipe import DEV, Context, Recipe, Summary, walk
from marin_dagster.record import Record

CELL_CHARACTERS = 400  # longer cells are cut
NOTE_CHARACTERS = 20_000
ATTEMPT_FACTS = ("number", "state", "reason", "message", "host", "run_id")


def build_page(recipe: ExperimentReport, ctx: Context) -> Summary:
    """Reads every record behind the targets and writes the page."""
    recipes = walk(recipe.targets)
    targets = {target.address for target in recipe.targets}
    records = {address: ctx.record(item) for address, item in recipes.items()}
    artifacts = [
        _artifact(item, records[address], address in targets, ctx)
        for address, item in recipes.items()
    ]
    inputs = {address: [i.address for i in item.needs] for address, item in recipes.items()}
    attempts = [attempt for record in records.values() for attempt in record.attempts]
    failures = sum(attempt["state"] == "failed" for attempt in attempts)
    page = _environment().from_string(TEMPLATE)
    html = page.render(
        title=recipe.title or recipe.name,
        description=recipe.description,
        address=recipe.address,
        style=markupsafe.Markup(STYLE),
        artifacts=artifacts,
        warnings=_warnings(records),
        counts=_count_rows(records),
        lineage=markupsafe.Markup(lineage_svg(inputs, sorted(targets))),
        total_bytes=sum(record.size_bytes for record in records.values()),
        total_seconds=sum(record.seconds for record in records.values()),
        failures=failures,
    )
    with open(os.path.join(ctx.out, "index.html"), "w", encoding="utf-8") as file:
        file.write(html)
    return Summary(
        numbers={
            "artifacts": len(artifacts),
            "failed_attempts": failures,
            "warnings": len(_warnings(records)),
        },
        tables={"Read, kept, dropped": _count_rows(records)},
    )


def _artifact(recipe: Recipe, record: Record, is_target: bool, ctx: Context) -> dict[str, Any]:
    summary = record.summary
    return {
        "address": recipe.address,
        "recipe": type(recipe).__name__,
        "is_target": is_target,
        "is_report": isinstance(recipe, EvalReport),
        "created": _time(record.ended),
        "seconds": record.seconds,
        "bytes": record.size_bytes,
        "numbers": [{"name": key, "value": value} for key, value in summary.numbers.items()],
        "tables": summary.tables,
        "notes": {title: _text(text[:NOTE_CHARACTERS]) for title, text in summary.notes.items()},
        "is_model": isinstance(recipe, Checkpoint),
        "plots": _plots(ctx.path(recipe), record) if is_target else {},
        "payload": json.dumps(record.payload, indent=1, ensure_ascii=False),
        "provenance": _provenance(record),
        "attempts": [{key: item.get(key) for key in ATTEMPT_FACTS} for item in record.attempts],
    }


def _plots(folder: str, record: Record) -> dict[str, str]:
    """The artifact's plots as data URIs; an image cannot run what an SVG might hold."""
    images = {}
    for title, name in record.plots.items():
        with open(os.path.join(folder, name), "rb") as file:
            images[title] = "data:image/svg+xml;base64," + base64.b64encode(file.read()).decode()
    return images


def _provenance(record: Record) -> list[dict[str, Any]]:
    facts: dict[str, Any] = {
        "content digest": record.digest,
        "recipe fingerprint": record.fingerprint,
        "inputs": ", ".join(f"{item.address} ({item.digest})" for item in record.inputs) or None,
        **record.provenance,
        "libraries": ", ".join(f"{name} {v}" for name, v in record.libraries.items()) or None,
        "run": record.run_id,
    }
    return [{"fact": key, "value": value} for key, value in facts.items() if value is not None]


def _count_rows(records: Mapping[str, Record]) -> list[dict[str, Any]]:
    rows = []
    for address, record in records.items():
        counts = record.summary.counts
        if counts is not None:
            lost = {**counts.dropped, **{f"error: {k}": v for k, v in counts.errors.items()}}
            listed = sorted(lost.items(), key=lambda item: -item[1])
            rows.append(
                {
                    "artifact": address,
                    "unit": counts.unit,
                    "read": counts.read,
                    "kept": counts.kept,
                    "kept %": round(100 * counts.kept / max(counts.read, 1), 2),
                    "dropped": ", ".join(f"{reason} {n:,}" for reason, n in listed if n),
                }
            )
    return rows


def _warnings(records: Mapping[str, Record]) -> list[str]:
    """What a reader must know before believing the page."""
    lines = []
    commits = {
        str((record.provenance.get("git") or {}).get("commit")) for record in records.values()
    }
    if len(commits) > 1:
        lines.append(f"The artifacts were built from {len(commits)} different commits.")
    changing = [address for address in records if address.endswith(f"@{DEV}")]
    dirty = [a for a, r in records.items() if (r.provenance.get("git") or {}).get("dirty")]
    if changing:
        lines.append(f"Development versions, which can change: {_some(changing, records)}.")
    if dirty:
        lines.append(f"Built with uncommitted changes of the code: {_some(dirty, records)}.")
    for address, record in records.items():
        if record.summary.numbers.get("logits_checked") is False:
            lines.append(f"The logits of {address} were not compared with transformers'.")
    for address, record in records.items():
        for item in record.inputs:
            now = records.get(item.address)
            if now is not None and now.digest != item.digest:
                lines.append(f"{address} is stale: {item.address} was rebuilt since.")
    return lines


def _some(addresses: Sequence[str], every: Mapping[str, Record]) -> str:
    """Names the addresses, unless they are all."""
    if len(addresses) == len(every):
        return f"all {len(every)} artifacts"
    return ", ".join(addresses)


def _text(note: str) -> str:
    """A note without the fences of Markdown, for a page that shows it as it is."""
    lines = [line for line in note.splitlines() if not line.startswith("```")]
    return "\n".join(lines).replace("**", "").strip()


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    environment.filters |= {
        "columns": _columns,
        "shown": _shown,
        "size": _size,
        "duration": lambda seconds: str(datetime.timedelta(seconds=round(seconds))),
    }
    return environment


def _columns(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(key for row in rows for key in row))


def _shown(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    if isinstance(value, (Mapping, Sequence)) and not isinstance(value, str):
        value = json.dumps(value, ensure_ascii=False, default=str)
    text = str(value)
    return text if len(text) <= CELL_CHARACTERS else text[:CELL_CHARACTERS] + "…"


def _size(count: float) -> str:
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def _time(seconds: float) -> str:
    moment = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    return moment.strftime("%Y-%m-%d %H:%M UTC")
