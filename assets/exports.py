"""A model becomes a Hugging Face folder."""

from assets.stage import stage_asset

DESCRIPTION = """\
A folder that transformers loads: safetensors, tokenizer, chat template; logits checked.

| | |
| --- | --- |
| reads | Checkpoint, Tokenizer |
| makes | HuggingFaceModel |
| look at | `logits_checked`, and the largest difference from our own model |
"""

exports = stage_asset(
    "exports",
    group="evaluation",
    kinds={"huggingface"},
    description=DESCRIPTION,
)
