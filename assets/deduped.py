"""Documents become unique documents."""

from assets.stage import stage_asset

deduped = stage_asset(
    "deduped",
    group="data",
    kinds={"datatrove"},
    description=(
        "One of each: exact copies and near-copies (MinHash, verified by real overlap) are "
        "removed, with the kept document as evidence."
    ),
)
