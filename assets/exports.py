"""A model becomes a Hugging Face folder."""

from assets.stage import stage_asset

exports = stage_asset(
    "exports",
    group="evaluation",
    kinds={"huggingface"},
    description=(
        "A folder that transformers loads: safetensors, tokenizer, chat template; logits checked."
    ),
)
