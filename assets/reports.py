"""Artifacts become a page for people."""

from assets.stage import stage_asset

DESCRIPTION = """\
One self-contained page: lineage, counts, curves, scores, samples.

| | |
| --- | --- |
| reads | anything: its targets and all that they were made from |
| makes | Report: `index.html`, at `page` |
| look at | `warnings` and `failed_attempts` of what it covers |
"""

reports = stage_asset(
    "reports",
    group="science",
    kinds={"html"},
    description=DESCRIPTION,
)
