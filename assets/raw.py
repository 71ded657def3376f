"""Data sets become documents, conversations and tasks."""

from assets.stage import stage_asset

DESCRIPTION = """\
Documents, conversations and evaluation tasks as they come: a Hugging Face dataset at a pinned
revision, local files, or examples made from a seed.

| | |
| --- | --- |
| reads | nothing of this laboratory |
| makes | Documents, Conversations or Tasks |
| look at | `counts` and `errors`: rows that could not be taken in |
"""

raw = stage_asset(
    "raw",
    group="data",
    kinds={"huggingface"},
    description=DESCRIPTION,
)
