"""The whole road on a laptop: a small made-up site becomes an evaluated chat model.

The site is served on loopback while it is crawled, so this needs no network and no account.
"""

from typing import Any, Literal

from marin_dagster.data.crawl import Crawl
from marin_dagster.data.decontaminate import Decontaminate
from marin_dagster.data.dedup import Deduplicate
from marin_dagster.data.examples import ExampleDocuments
from marin_dagster.data.filter import FilterDocuments, MinWords
from marin_dagster.data.html import ExtractText
from marin_dagster.data.quality import TrainClassifier
from marin_dagster.data.raw import StoryConversations, StoryTasks
from marin_dagster.data.site import GeneratedSite
from marin_dagster.data.tokenize import TokenizeConversations, TokenizeDocuments
from marin_dagster.data.tokenizer import TrainTokenizer
from marin_dagster.evaluation.evaluate import Evaluate
from marin_dagster.evaluation.export import ExportHuggingFace
from marin_dagster.kinds import Checkpoint, Documents, Tasks, TokenCache, Tokenizer
from marin_dagster.models.config import MoEConfig
from marin_dagster.openness.report import ExperimentReport
from marin_dagster.posttraining.sft import SupervisedFineTune
from marin_dagster.recipe import Recipe
from marin_dagster.training.optimizer import AdamW
from marin_dagster.training.pretrain import Pretrain
from marin_dagster.training.schedule import WarmupStableDecay

VERSIONS = ("dev", "2026.11.30")
SEED = 1
DESCRIPTION = (
    "A made-up site of small stories, crawled, cleaned and tokenized; a mixture-of-experts model "
    "trained on it for about two minutes, then taught to chat. It picks up the words and rhythm of "
    "its data, and few of the facts: expect story_cloze a little above chance."
)

MODEL = MoEConfig(
    hidden_dim=128,
    num_layers=4,
    num_heads=4,
    num_kv_heads=2,
    head_dim=32,
    expert_dim=128,
    num_experts=8,
    num_experts_per_token=2,
    num_shared_experts=1,
    seq_len=256,
)


def experiment(version: str) -> tuple[Recipe, ...]:
    """From the crawl to the report."""
    base: dict[str, Any] = {"name": "quickstart", "version": version}
    # What evaluation will ask, fixed first, so that the data can be cleaned of it.
    tasks = StoryTasks(name="story-tasks", version=version, seed=SEED, num_examples=200)
    documents = clean_documents(base, tasks)

    tokenizer = TrainTokenizer(**base, documents=(documents,), vocab_size=2_048)
    split: dict[str, Any] = {
        "documents": documents,
        "tokenizer": tokenizer,
        "validation_fraction": 0.04,
    }
    train = TokenizeDocuments(**base, **split, split="train")
    heldout = TokenizeDocuments(
        name="quickstart-validation", version=version, **split, split="validation"
    )

    checkpoint = pretrained(base, tokenizer, train, heldout)
    chat_model = fine_tuned(base, tokenizer, checkpoint, chats_name="story-chats")

    scores = Evaluate(
        **base, checkpoint=checkpoint, tokenizer=tokenizer, tasks=(tasks,), heldout=(heldout,)
    )
    chat_scores = Evaluate(
        name="quickstart-chat",
        version=version,
        checkpoint=chat_model,
        tokenizer=tokenizer,
        tasks=(tasks,),
        task_names=("story_cloze",),
        limit=100,
    )
    export = ExportHuggingFace(**base, checkpoint=chat_model, tokenizer=tokenizer)
    targets = (checkpoint, chat_model, scores, chat_scores, export)
    return (ExperimentReport(**base, targets=targets, description=DESCRIPTION),)


def clean_documents(base: dict[str, Any], tasks: Tasks) -> Documents:
    """From a site to documents that are English, good, unique, and no answers of a test."""
    site = GeneratedSite(
        host="stories.test", seed=SEED, num_pages=450, stories_per_page=10, num_leaked=9
    )
    pages = Crawl(
        **base,
        seeds=("http://stories.test/",),
        sites=(site,),
        max_pages=1_200,
        max_depth=50,
        requests_per_host=16,  # it is our own site
    )
    text = ExtractText(**base, pages=pages)
    classifier = TrainClassifier(
        **base,
        positive=(_examples("story", base["version"]),),
        negative=(_examples("spam", base["version"]),),
    )
    filtered = FilterDocuments(
        **base,
        documents=text,
        languages=("en", ""),  # "": the language is not clear
        rules=(MinWords(words=50),),
        classifier=classifier,
        min_quality=0.5,
    )
    deduped = Deduplicate(**base, documents=filtered)
    return Decontaminate(**base, documents=deduped, tasks=(tasks,))


def pretrained(
    base: dict[str, Any], tokenizer: Tokenizer, train: TokenCache, heldout: TokenCache
) -> Checkpoint:
    """A mixture-of-experts model that has read about half a million tokens."""
    return Pretrain(
        **base,
        tokenizer=tokenizer,
        data=((train, 1.0),),
        validation=(heldout,),
        model=MODEL,
        optimizer=AdamW(
            learning_rate=6e-3, schedule=WarmupStableDecay(warmup_steps=20, decay_steps=60)
        ),
        num_steps=120,
        batch_size=16,
        seed=SEED,
        steps_per_eval=60,
        sample_prompts=("", "One day, a girl named"),
    )


def fine_tuned(
    base: dict[str, Any], tokenizer: Tokenizer, checkpoint: Checkpoint, *, chats_name: str
) -> Checkpoint:
    """The model, taught to answer."""
    version = base["version"]
    chats = TokenizeConversations(
        name=chats_name,
        version=version,
        conversations=StoryConversations(
            name="story-chats", version=version, seed=SEED, num_conversations=2_000
        ),
        tokenizer=tokenizer,
        seq_len=MODEL.seq_len,
    )
    return SupervisedFineTune(
        **base,
        checkpoint=checkpoint,
        tokenizer=tokenizer,
        conversations=chats,
        optimizer=AdamW(
            learning_rate=4e-3, schedule=WarmupStableDecay(warmup_steps=5, decay_steps=40)
        ),
        num_steps=60,
        batch_size=16,
        seed=SEED,
        sample_questions=("Tell me a story about a red kite.", "What does a cow say?"),
    )


def _examples(label: Literal["story", "spam"], version: str) -> ExampleDocuments:
    return ExampleDocuments(
        name=f"{label}-examples", version=version, label=label, seed=SEED, num_documents=500
    )
