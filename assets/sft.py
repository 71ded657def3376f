"""A model and conversations become a chat model."""

from assets.stage import stage_asset

DESCRIPTION = """\
The model, taught to chat: the loss is on the assistant's tokens only.

| | |
| --- | --- |
| reads | Checkpoint, conversations as a TokenCache, Tokenizer |
| makes | Checkpoint that chats |
| while it runs | *Overview* → *Plots* → *Events*: loss, gradient norm, throughput |
| look at | `One conversation with its loss mask`; `stopped_share`: answers that end; `Answers` |
"""

sft = stage_asset(
    "sft",
    group="training",
    kinds={"jax", "equinox", "optax"},
    description=DESCRIPTION,
)
