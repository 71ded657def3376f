"""Steps of a training run become models, while it goes on."""

from assets.stage import stage_asset

DESCRIPTION = """\
The model after some of the steps of a run, published by the run when it reaches them, so that
evaluation need not wait for the end.

| | |
| --- | --- |
| reads | what the run reads; build the run to make them |
| makes | Checkpoint |
| look at | `Loss` up to that step; `evals` of it, beside those of the end |
"""

snapshots = stage_asset(
    "snapshots",
    group="training",
    kinds={"jax"},
    description=DESCRIPTION,
)
