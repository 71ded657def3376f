"""Documents become unique documents."""

from assets.stage import stage_asset

DESCRIPTION = """\
One of each: exact copies and near-copies (MinHash, verified by real overlap) are removed, with the
kept document as evidence; also copies of earlier artifacts, and repeated paragraphs.

| | |
| --- | --- |
| reads | Documents |
| makes | Documents; every removed one names the one that was kept |
| look at | `counts`: exact and near copies; a large group is a template, not a text |
"""

deduped = stage_asset(
    "deduped",
    group="data",
    kinds={"datatrove"},
    description=DESCRIPTION,
)
