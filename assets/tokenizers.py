"""Documents become a tokenizer."""

from assets.stage import stage_asset

DESCRIPTION = """\
A byte-pair tokenizer with byte fallback, trained here; every text comes back byte for byte.

| | |
| --- | --- |
| reads | Documents, of which it takes a sample |
| makes | Tokenizer, with special tokens and a chat template |
| look at | `bytes_per_token`: higher is shorter sequences; `Example splits` |
"""

tokenizers = stage_asset(
    "tokenizers",
    group="data",
    kinds={"sentencepiece"},
    description=DESCRIPTION,
)
