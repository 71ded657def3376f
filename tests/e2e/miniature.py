"""The road of the quickstart with everything small: seconds instead of minutes.

`python -m tests.e2e.miniature PREFIX ADDRESS...` builds artifacts of it, each in this process.
"""

import dataclasses
import functools
import sys
from typing import Any

from marin_dagster.data.crawl import Crawl
from marin_dagster.data.examples import ExampleDocuments
from marin_dagster.data.raw import StoryConversations, StoryTasks
from marin_dagster.data.site import GeneratedSite
from marin_dagster.data.tokenizer import TrainTokenizer
from marin_dagster.experiments import quickstart
from marin_dagster.models.config import MoEConfig
from marin_dagster.posttraining.sft import SupervisedFineTune
from marin_dagster.recipe import Recipe, walk
from marin_dagster.store import Store
from marin_dagster.training.pretrain import Pretrain
from marin_dagster.training.schedule import WarmupStableDecay

SIZES: dict[type, dict[str, Any]] = {
    GeneratedSite: {"num_pages": 60, "stories_per_page": 4, "num_leaked": 4},
    Crawl: {"max_pages": 200},
    ExampleDocuments: {"num_documents": 200},
    StoryTasks: {"num_examples": 24},
    StoryConversations: {"num_conversations": 120},
    TrainTokenizer: {"vocab_size": 600},
    MoEConfig: {"hidden_dim": 32, "num_layers": 2, "head_dim": 8, "expert_dim": 32},
    Pretrain: {"num_steps": 24, "batch_size": 4, "steps_per_eval": 12, "steps_per_checkpoint": 4},
    SupervisedFineTune: {"num_steps": 12, "batch_size": 4},
    WarmupStableDecay: {"warmup_steps": 2, "decay_steps": 8},
}


@functools.cache
def recipes() -> dict[str, Recipe]:
    """Every recipe of the road by address, inputs first."""
    return walk(_small(quickstart.experiment("dev")))


def _small(value: Any) -> Any:
    """The same value with smaller numbers, recipe by recipe."""
    if isinstance(value, tuple):
        return tuple(_small(item) for item in value)
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return value
    fields = {item.name: getattr(value, item.name) for item in dataclasses.fields(value)}
    changed = {name: _small(old) for name, old in fields.items()} | SIZES.get(type(value), {})
    return dataclasses.replace(value, **changed)


if __name__ == "__main__":
    for address in sys.argv[2:]:
        Store(sys.argv[1]).build(recipes()[address])
