"""A model and conversations become a chat model."""

from assets.stage import stage_asset

sft = stage_asset(
    "sft",
    group="training",
    kinds={"jax", "equinox", "optax"},
    description="The model, taught to chat: the loss is on the assistant's tokens only.",
)
