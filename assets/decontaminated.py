"""Documents become documents that evaluation may trust."""

from assets.stage import stage_asset

DESCRIPTION = """\
Documents that share no passage with the evaluation sets in use.

| | |
| --- | --- |
| reads | Documents, Tasks |
| makes | Documents; every dropped one with the passage that it shares |
| look at | `counts`: none dropped may mean another normalisation, not clean data |
"""

decontaminated = stage_asset(
    "decontaminated",
    group="data",
    kinds={"xxhash"},
    description=DESCRIPTION,
)
