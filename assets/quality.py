"""Labelled documents become a classifier."""

from assets.stage import stage_asset

quality = stage_asset(
    "quality",
    group="data",
    kinds={"fasttext"},
    description=(
        "A text classifier, trained here on documents to keep and documents to drop, with its "
        "precision and recall on documents that it did not see."
    ),
)
