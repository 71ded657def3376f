"""A model and tasks become scores."""

from assets.stage import stage_asset

DESCRIPTION = """\
Scores on local tasks (lm-evaluation-harness), and loss and bits per byte on text that the model
never saw.

| | |
| --- | --- |
| reads | Checkpoint, Tokenizer, Tasks, held-out TokenCaches |
| makes | EvalReport: `results.json`, and every answer in `samples_<task>.jsonl` |
| look at | scores beside their chance level and standard error; `numbers by version` |
"""

evals = stage_asset(
    "evals",
    group="evaluation",
    kinds={"lm_eval", "jax"},
    description=DESCRIPTION,
)
