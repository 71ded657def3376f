"""Documents and conversations become token caches."""

from assets.stage import stage_asset

DESCRIPTION = """\
Token ids, ready to be read by training at random; read back and compared before they are
committed.

| | |
| --- | --- |
| reads | Documents or Conversations, Tokenizer |
| makes | TokenCache, with loss weights for conversations |
| look at | `tokens`; the table of lengths, for what a row of training cuts off |
"""

tokenized = stage_asset(
    "tokenized",
    group="data",
    kinds={"numpy"},
    description=DESCRIPTION,
)
