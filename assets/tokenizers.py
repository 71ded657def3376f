"""Documents become a tokenizer."""

from assets.stage import stage_asset

tokenizers = stage_asset(
    "tokenizers",
    group="data",
    kinds={"sentencepiece"},
    description=(
        "A byte-pair tokenizer with byte fallback, trained here; every text comes back byte "
        "for byte."
    ),
)
