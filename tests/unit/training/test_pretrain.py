import dataclasses
import os
import re
from pathlib import Path

import pytest

from marin_dagster.data.tokenize import TokenizeDocuments
from marin_dagster.models.config import MoEConfig
from marin_dagster.recipe import Placement, StageError
from marin_dagster.training.metrics import read_metrics
from marin_dagster.training.model_files import load_model
from marin_dagster.training.optimizer import AdamW
from marin_dagster.training.phases import Phase, Phases, Stage
from marin_dagster.training.pretrain import Pretrain
from marin_dagster.training.schedule import Linear
from tests.fake_context import build
from tests.unit.data.corpus import CORPUS, TOKENIZER, TextCorpus, build_tokenizer
from tests.unit.data.toy_documents import in_this_process

SPLIT = {"documents": CORPUS, "tokenizer": TOKENIZER, "validation_fraction": 0.2}
TRAIN = TokenizeDocuments(name="train", version="dev", **SPLIT)
HELD_OUT = TokenizeDocuments(name="held-out", version="dev", split="validation", **SPLIT)
PRETRAIN = Pretrain(
    name="tiny",
    version="dev",
    tokenizer=TOKENIZER,
    data=((TRAIN, 1.0),),
    validation=(HELD_OUT,),
    model=MoEConfig(
        hidden_dim=32,
        num_layers=1,
        num_heads=2,
        num_kv_heads=1,
        head_dim=16,
        expert_dim=32,
        num_experts=4,
        num_experts_per_token=2,
        num_shared_experts=1,
        seq_len=384,
    ),
    optimizer=AdamW(learning_rate=1e-2, schedule=Linear(warmup_steps=3)),
    num_steps=30,
    batch_size=2,
    seed=0,
    steps_per_eval=10,
)
QUIET = {"placement": Placement(workers=1, wandb_mode="disabled")}


def build_pretrained(root):
    build_tokenizer(root)
    with in_this_process():
        for recipe in (TRAIN, HELD_OUT):
            build(recipe, root)
    return build(PRETRAIN, root, **QUIET)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    root = tmp_path_factory.mktemp("pretrain")
    return root, build_pretrained(root)


def test_a_pretrained_model_beats_unigram_frequencies_on_held_out_text(built):
    numbers = built[1].numbers
    assert numbers["eval_loss"] < numbers["unigram_entropy"] < numbers["first_train_loss"]
    assert numbers["tokens"] == PRETRAIN.tokens


def test_the_artifact_holds_the_model_and_one_metrics_row_per_step(built):
    folder = os.path.join(built[0], "artifacts", PRETRAIN.address)
    model, config = load_model(folder)
    assert config == PRETRAIN.model
    assert model.vocab_size == built[1].numbers["vocab_size"]
    rows = read_metrics(os.path.join(folder, "metrics.jsonl"))
    assert [row["step"] for row in rows] == list(range(1, 31))
    assert [row["step"] for row in rows if "eval/loss" in row] == [10, 20, 30]


def test_the_reference_tells_every_number_of_a_row(built):
    page = Path(__file__).parents[3] / "docs" / "reference" / "metrics.md"
    told = re.findall(r"`([\w/<>]+)`", page.read_text())
    known = [re.compile(re.sub(r"<\w+>", ".+", name)) for name in told]
    rows = read_metrics(os.path.join(built[0], "artifacts", PRETRAIN.address, "metrics.jsonl"))
    names = {re.sub(r"^moe/layer_\d+/", "moe/", name) for row in rows for name in row}
    assert len(names) > 40
    assert [name for name in names if not any(form.fullmatch(name) for form in known)] == []


def test_the_plots_are_the_same_bytes_each_time(built):
    from marin_dagster.plots import line_chart

    draw = [line_chart({"loss": ([1, 2], [3.0, 2.0])}, "Loss", "step", "nats") for _ in "ab"]
    assert draw[0] == draw[1]
    assert set(built[1].plots) >= {"Loss", "Gradient norm", "Expert load"}


def test_a_cache_of_another_tokenizer_is_refused(built):
    texts = TextCorpus(name="other", version="dev", size=150)
    other = dataclasses.replace(TOKENIZER, name="other", documents=(texts,), vocab_size=320)
    cache = TokenizeDocuments(name="other", version="dev", documents=texts, tokenizer=other)
    with in_this_process():
        for recipe in (texts, other, cache):
            build(recipe, built[0])
    mixed = dataclasses.replace(PRETRAIN, name="mixed", data=((TRAIN, 1.0), (cache, 1.0)))
    with pytest.raises(StageError, match=r"tokenized/other@dev was made by tokenizer"):
        build(mixed, built[0], **QUIET)


def test_a_source_that_would_never_be_sampled_is_refused():
    with pytest.raises(ValueError, match=r"weight=0 of tokenized/train@dev is not positive"):
        dataclasses.replace(PRETRAIN, data=((TRAIN, 0),))


PHASES = Phases(
    phases=(
        Phase(from_step=0, seq_len=96, batch_size=8),
        Phase(from_fraction=0.5, seq_len=384, batch_size=2),
    )
)


def test_context_and_mixture_change_on_the_way(built):
    other = dataclasses.replace(TRAIN, name="train-2", validation_fraction=0.3)
    build(other, built[0])
    recipe = dataclasses.replace(
        PRETRAIN,
        name="staged",
        num_steps=8,
        steps_per_eval=None,
        phases=PHASES,
        stages=(Stage(from_step=6, data=((TRAIN, 1.0), (other, 3.0))),),
    )
    assert recipe.inputs == (TOKENIZER, TRAIN, other, HELD_OUT)
    summary = build(recipe, built[0], **QUIET)
    rows = read_metrics(os.path.join(built[0], "artifacts", recipe.address, "metrics.jsonl"))
    assert [row["mixture/context"] for row in rows] == [96] * 4 + [384] * 4
    assert [row["mixture/stage"] for row in rows] == [0] * 6 + [1] * 2
    assert [row["tokens"] for row in rows] == [768 * step for step in range(1, 9)]
    table = {row["source"]: row for row in summary.tables["Data"]}
    assert table[other.address]["requested share"] == pytest.approx(0.1875)
    assert table[other.address]["realised share"] == pytest.approx(0.1875)
    assert summary.numbers["flops"] == pytest.approx(recipe.cost({})["flops"], rel=0.01)
    assert recipe.cost({})["flops"] < dataclasses.replace(recipe, phases=None).cost({})["flops"]


def test_phases_must_fit_the_model_and_the_batch():
    short = Phases(phases=PHASES.phases[:1])
    with pytest.raises(ValueError, match="seq_len=384 of checkpoints/tiny@dev is not the longest"):
        dataclasses.replace(PRETRAIN, phases=short)
    with pytest.raises(ValueError, match=r"batch_size=4 .* is not the 768 tokens per step"):
        dataclasses.replace(PRETRAIN, phases=PHASES, batch_size=4)
    with pytest.raises(ValueError, match="a stage begins at step 30, which a run of num_steps=30"):
        dataclasses.replace(PRETRAIN, stages=(Stage(from_step=30, data=((TRAIN, 1.0),)),))
    with pytest.raises(ValueError, match="is empty; give at least one"):
        dataclasses.replace(PRETRAIN, stages=(Stage(from_step=3, data=()),))
