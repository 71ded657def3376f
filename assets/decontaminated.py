"""Documents become documents that evaluation may trust."""

from assets.stage import stage_asset

decontaminated = stage_asset(
    "decontaminated",
    group="data",
    kinds={"xxhash"},
    description="Documents that share no passage with the evaluation sets in use.",
)
