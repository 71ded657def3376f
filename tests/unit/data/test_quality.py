import random
from dataclasses import replace

import numpy as np
import pytest

from marin_dagster.data.quality import TrainClassifier, load_classifier, normalise
from marin_dagster.recipe import StageError
from tests.fake_context import FakeContext, build
from tests.unit.data.toy_documents import random_text, write_documents

SPAM = "buy cheap sale price now click offer discount deal shop".split()  # noqa: SIM905


def texts(positive: bool, count: int = 60) -> list[str]:
    rng = random.Random(7 + positive)
    return [
        random_text(rng, 30) if positive else " ".join(rng.choices(SPAM, k=30))
        for _ in range(count)
    ]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    root = tmp_path_factory.mktemp("quality")
    good = write_documents(root, [*texts(True), "same text", "  SAME\ntext "], name="good")
    bad = write_documents(root, [*texts(False), "same text", ""], name="bad")
    recipe = TrainClassifier(
        name="toy", version="dev", positive=(good,), negative=(bad,), dim=8, bucket=1000
    )
    summary = build(recipe, root)
    return recipe, root, summary, FakeContext(recipe, root).out


def test_it_separates_and_accounts_for_every_document(trained):
    _, _, summary, _ = trained
    assert summary.numbers["auc"] > 0.95
    assert summary.counts.balance == 0
    assert summary.counts.dropped == {"empty": 1, "repeated": 2, "both_labels": 1}
    assert ">positive<" in summary.plots["held-out scores"]


def test_the_same_text_has_the_same_score_in_any_form_and_batch(trained):
    classifier = load_classifier(trained[3])
    text = texts(True)[0]
    forms = [text, text + "\n", "\r\n" + text.replace(" ", "\n"), text.upper(), text + " \t "]
    assert len(set(classifier.scores(forms))) == 1
    assert classifier.scores([text])[0] == classifier.scores([*texts(False), text])[-1]


def test_scores_of_odd_texts_are_probabilities(trained):
    odd = ["", "\0", "\ud800", "a", "word " * 200_000, *texts(True), *texts(False)]
    scores = load_classifier(trained[3]).scores(odd)
    assert np.all((scores >= 0) & (scores <= 1))
    assert scores[0] == 0


def test_two_trainings_give_the_same_model(trained):
    recipe, root, _, out = trained
    again = replace(recipe, name="again")
    build(again, root)
    with (
        open(f"{out}/model.bin", "rb") as one,
        open(f"{FakeContext(again, root).out}/model.bin", "rb") as two,
    ):
        assert one.read() == two.read()


def test_normalise_caps_long_texts():
    assert len(normalise("ab " * 100_000)) <= 20_000


def test_a_side_without_documents_is_refused(tmp_path):
    good = write_documents(tmp_path, ["only text"], name="good")
    with pytest.raises(ValueError, match="negative="):
        TrainClassifier(name="x", version="dev", positive=(good,), negative=())
    recipe = TrainClassifier(name="x", version="dev", positive=(good,), negative=(good,))
    with pytest.raises(StageError, match="0 positive"):
        build(recipe, tmp_path)
