"""A small model on TinyStories: the hub's dataset, then the same road as every other corpus.

Needs the network once, for `raw/tinystories`; everything after it is local.
"""

from typing import Any

from marin_dagster.data.decontaminate import Decontaminate
from marin_dagster.data.dedup import Deduplicate
from marin_dagster.data.filter import FilterDocuments, GopherRepetition, MinWords
from marin_dagster.data.raw import HubDataset, StoryTasks
from marin_dagster.data.tokenize import TokenizeDocuments
from marin_dagster.data.tokenizer import TrainTokenizer
from marin_dagster.evaluation.evaluate import Evaluate
from marin_dagster.evaluation.export import ExportHuggingFace
from marin_dagster.experiments.quickstart import MODEL, fine_tuned
from marin_dagster.kinds import Documents
from marin_dagster.openness.report import ExperimentReport
from marin_dagster.recipe import Recipe
from marin_dagster.training.optimizer import AdamW
from marin_dagster.training.pretrain import Pretrain
from marin_dagster.training.schedule import WarmupStableDecay

VERSIONS = ("dev", "2026.11.30")
SEED = 1


def experiment(version: str) -> tuple[Recipe, ...]:
    """The first 20,000 stories of Eldan and Li (https://arxiv.org/abs/2305.07759)."""
    stories = HubDataset(
        name="tinystories",
        version=version,
        repo="roneneldan/TinyStories",
        revision="f54c09fd23315a6f9c86f9dc80f725de7d8f9c64",
        max_documents=20_000,
    )
    return road(stories)


def road(stories: Documents, *, vocab_size: int = 4_096) -> tuple[Recipe, ...]:
    """From documents to a report, under the documents' name and version."""
    base: dict[str, Any] = {"name": stories.name, "version": stories.version}
    nano: dict[str, Any] = {"name": f"marin-nano-{stories.name}", "version": stories.version}
    tasks = StoryTasks(name="story-tasks", version=stories.version, seed=SEED, num_examples=200)
    filtered = FilterDocuments(
        **base, documents=stories, rules=(MinWords(words=20), GopherRepetition())
    )
    clean = Decontaminate(**base, documents=Deduplicate(**base, documents=filtered), tasks=(tasks,))
    tokenizer = TrainTokenizer(**base, documents=(clean,), vocab_size=vocab_size)
    split: dict[str, Any] = {
        "documents": clean,
        "tokenizer": tokenizer,
        "validation_fraction": 0.02,
    }
    heldout = TokenizeDocuments(
        name=f"{stories.name}-validation", version=stories.version, **split, split="validation"
    )
    checkpoint = Pretrain(
        **nano,
        tokenizer=tokenizer,
        data=((TokenizeDocuments(**base, **split, split="train"), 1.0),),
        validation=(heldout,),
        model=MODEL,
        optimizer=AdamW(
            learning_rate=3e-3,
            schedule=WarmupStableDecay(warmup_steps=20, decay_steps=33),
        ),
        num_steps=100,
        batch_size=16,
        seed=SEED,
        steps_per_eval=50,
        sample_prompts=("", "Once upon a time"),
    )
    chat_model = fine_tuned(nano, tokenizer, checkpoint, chats_name=f"{stories.name}-chats")
    scores = Evaluate(
        **nano, checkpoint=checkpoint, tokenizer=tokenizer, tasks=(tasks,), heldout=(heldout,)
    )
    export = ExportHuggingFace(**nano, checkpoint=chat_model, tokenizer=tokenizer)
    targets = (checkpoint, chat_model, scores, export)
    return (ExperimentReport(**nano, targets=targets),)
