"""Labelled documents become a classifier."""

from assets.stage import stage_asset

DESCRIPTION = """\
A text classifier, trained here on documents to keep and documents to drop, with its precision and
recall on documents that it did not see.

| | |
| --- | --- |
| reads | positive and negative Documents |
| makes | Classifier |
| look at | `held-out scores`: two hills, apart; `held out by source`: a source on the wrong side |
"""

quality = stage_asset(
    "quality",
    group="data",
    kinds={"fasttext"},
    description=DESCRIPTION,
)
