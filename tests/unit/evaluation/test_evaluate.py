"""An evaluation is complete, repeatable, offline, and refuses what would make scores wrong."""

import json
import math
from dataclasses import replace

import pytest

from marin_dagster.data.tokenize import TokenizeDocuments
from marin_dagster.data.tokenizer import TrainTokenizer
from marin_dagster.evaluation.evaluate import Evaluate
from marin_dagster.evaluation.evaluate_build import chance_level
from marin_dagster.recipe import StageError
from tests.fake_context import build
from tests.unit.data.corpus import CORPUS, TOKENIZER, build_tokenizer
from tests.unit.data.toy_documents import in_this_process
from tests.unit.evaluation.models import MODEL, TASKS, RandomModel

HELDOUT = TokenizeDocuments(
    name="held",
    version="dev",
    documents=CORPUS,
    tokenizer=TOKENIZER,
    split="validation",
    validation_fraction=0.1,
)
EVALUATE = Evaluate(
    name="e",
    version="dev",
    checkpoint=MODEL,
    tokenizer=TOKENIZER,
    tasks=(TASKS,),
    heldout=(HELDOUT,),
    limit=6,
    batch_tokens=512,
)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = build_tokenizer(tmp_path_factory.mktemp("evaluate"))
    with in_this_process():
        for recipe in (HELDOUT, MODEL, TASKS):
            build(recipe, root)
    return root


@pytest.fixture(scope="module")
def summary(root):
    return build(EVALUATE, root)


def results(root, recipe=EVALUATE):
    return json.loads((root / "artifacts" / recipe.address / "results.json").read_text())


def test_results_have_scores_errors_chance_and_samples(root, summary):
    found = results(root)
    assert set(found["results"]) == {"choose", "finish", "write"}
    assert "acc_stderr,none" in found["results"]["choose"]
    assert found["chance"] == {"choose": 0.5, "finish": None, "write": None}
    assert found["n-samples"]["choose"] == {"original": 12, "effective": 6}
    path = root / "artifacts" / EVALUATE.address / "samples_choose.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert len({row["doc_id"] for row in rows}) == 6
    assert [row["doc_id"] for row in rows] != list(range(6))
    (row,) = [row for row in summary.tables["Scores"] if row["task"] == "choose"]
    assert (row["chance"], row["examples"]) == (0.5, 6)
    assert summary.counts is not None
    assert summary.counts.balance == 0


def test_held_out_loss_is_near_that_of_a_random_model(root, summary):
    (row,) = summary.tables["Held-out loss"]
    vocab_size = 330
    assert row["loss"] == pytest.approx(math.log(vocab_size), abs=0.5)
    assert row["bits_per_byte"] > 1
    assert results(root)["heldout"]["held@dev"]["loss"] == row["loss"]


def test_another_batch_size_gives_the_same_scores_and_no_path_is_stored(root, summary):
    again = replace(EVALUATE, name="again", batch_tokens=64)
    build(again, root)
    assert results(root, again)["results"] == results(root)["results"]
    for file in (root / "artifacts" / again.address).iterdir():
        assert str(root) not in file.read_text(), file.name


def test_what_was_measured_with_what_is_recorded(root, summary):
    config = results(root)["config"]
    assert config["model_fingerprint"] == MODEL.fingerprint
    assert config["tasks"] == {TASKS.address: TASKS.fingerprint}
    assert config["chat_template_sha256"] is None


def test_a_model_trained_on_chats_is_asked_in_the_chat_format(root):
    model = RandomModel(name="chat", version="dev", chat=True)
    build(model, root)
    recipe = replace(
        EVALUATE, name="chat", checkpoint=model, heldout=(), task_names=("choose",), limit=2
    )
    build(recipe, root)
    assert results(root, recipe)["config"]["chat_template_sha256"]
    text = (root / "artifacts" / recipe.address / "samples_choose.jsonl").read_text()
    assert "<|user|>" in text


def test_a_missing_task_is_named_before_the_model_loads(root, tmp_path):
    recipe = replace(
        EVALUATE, name="typo", task_names=("chose",), checkpoint=replace(MODEL, name="gone")
    )
    with pytest.raises(StageError, match="task 'chose' is in none"):
        build(recipe, root)


def test_another_tokenizer_than_the_models_is_refused(root):
    other = TrainTokenizer(name="other", version="dev", documents=(CORPUS,), vocab_size=300)
    build(other, root)
    with pytest.raises(StageError, match="was made with tokenizer"):
        build(replace(EVALUATE, name="mixed", tokenizer=other), root)


def test_chance_is_the_mean_over_examples():
    rows = [
        {"filter": "none", "acc": 1.0, "resps": [1, 2]},
        {"filter": "none", "acc": 0.0, "resps": [1, 2, 3, 4]},
    ]
    assert chance_level(rows) == pytest.approx(0.375)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tasks": (), "heldout": ()}, "leave nothing to measure"),
        ({"limit": 0}, "limit=0"),
        ({"batch_tokens": 0}, "batch_tokens=0"),
        ({"tasks": (), "task_names": ("a",)}, "has no tasks artifact"),
    ],
)
def test_bad_fields_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        replace(EVALUATE, **changes)
