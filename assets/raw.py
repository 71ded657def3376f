"""Data sets become documents, conversations and tasks."""

from assets.stage import stage_asset

raw = stage_asset(
    "raw",
    group="data",
    kinds={"huggingface"},
    description=(
        "Documents, conversations and evaluation tasks as they come: a Hugging Face dataset "
        "at a pinned revision, or local files."
    ),
)
