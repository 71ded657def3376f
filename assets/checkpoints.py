"""Token caches become a model."""

from assets.stage import stage_asset

DESCRIPTION = """\
A mixture-of-experts model with shared and routed experts, pretrained on weighted token caches.

| | |
| --- | --- |
| reads | weighted TokenCaches, Tokenizer |
| makes | Checkpoint: weights, configuration, `metrics.jsonl` |
| while it runs | *Overview* → *Plots* → *Events*: loss, gradient norm, throughput, experts |
| look at | `Loss` beside the unigram entropy; `Gradient norm`: spikes; `Samples` |
| | `Expert load`: the busiest expert stays near 1; `Throughput`: sags |
| if it diverges | lower the learning rate or warm up longer |
| if it is killed | build again: it goes on from its last resume point |
"""

checkpoints = stage_asset(
    "checkpoints",
    group="training",
    kinds={"jax", "equinox", "optax"},
    description=DESCRIPTION,
)
