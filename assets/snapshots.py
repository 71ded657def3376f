"""Steps of a training run become models, while it goes on."""

from assets.stage import stage_asset

snapshots = stage_asset(
    "snapshots",
    group="training",
    kinds={"jax"},
    description=(
        "The model after some of the steps of a run, published by the run itself when it reaches "
        "them, so that evaluation need not wait for the end. Build the run to make them."
    ),
)
