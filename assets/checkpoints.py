"""Token caches become a model."""

from assets.stage import stage_asset

checkpoints = stage_asset(
    "checkpoints",
    group="training",
    kinds={"jax", "equinox", "optax"},
    description=(
        "A mixture-of-experts model with shared and routed experts, pretrained on weighted "
        "token caches. Watch loss, gradient norm, routing and throughput."
    ),
)
