"""A model and tasks become scores."""

from assets.stage import stage_asset

evals = stage_asset(
    "evals",
    group="evaluation",
    kinds={"lm_eval", "jax"},
    description=(
        "Scores on local tasks (lm-evaluation-harness), and loss and bits per byte on text "
        "that the model never saw."
    ),
)
