"""Artifacts become a page for people."""

from assets.stage import stage_asset

reports = stage_asset(
    "reports",
    group="science",
    kinds={"html"},
    description="One self-contained page: lineage, counts, curves, scores, samples.",
)
