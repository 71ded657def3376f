"""Turns targets into runs of the asset `build`: what sensors start, and backfills by name."""

import dagster as dg

build_targets = dg.define_asset_job(
    "build_targets",
    selection=dg.AssetSelection.assets("build"),
    description=(
        "Materializes partitions of the asset build, one run each. Several at once: "
        "`dagster job backfill`, or Launch backfill in the UI."
    ),
)
