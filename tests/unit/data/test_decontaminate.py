import json
import random
import unicodedata
from dataclasses import dataclass
from pathlib import Path

import pytest

from marin_dagster.data.decontaminate import Decontaminate
from marin_dagster.data.disguises import plant
from marin_dagster.data.documents import read_documents
from marin_dagster.data.item_index import Item, ItemIndex, read_items
from marin_dagster.kinds import Tasks
from marin_dagster.recipe import Context, StageError, Summary
from tests.fake_context import FakeContext, build
from tests.unit.data.toy_documents import ToyDocuments, random_text, write_documents

LONG = (
    "A farmer in Łódź keeps forty naïve hens, and every morning each hen lays “two” brown eggs "
    "which he sells at the market for three euros; how much does the farmer earn in one week "
    "if he eats six of the eggs himself and gives the rest of them away?"
)
SHORT = "Which planet has the largest moon?"
CHOICE = {"query": "Question: The glass fell", "choices": ["it flew away", "it broke on the floor"]}
SETTINGS = {"ngram_size": 13, "min_overlap": 0.5, "min_item_words": 5, "whole_item_words": 13}


@dataclass(frozen=True, kw_only=True)
class ToyTasks(Tasks):
    stage = "tasks"

    def build(self, ctx: Context) -> Summary:
        raise NotImplementedError


def write_tasks(root: Path, rows: list[dict], name: str = "toy") -> ToyTasks:
    recipe = ToyTasks(name=name, version="dev")
    folder = root / "artifacts" / recipe.address / "tasks"
    folder.mkdir(parents=True)
    lines = [json.dumps(row) + "\n" for row in rows]
    (folder / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")
    return recipe


def wrap(text: str, num_words: int) -> str:
    tokens = text.split()
    lines = [" ".join(tokens[i : i + num_words]) for i in range(0, len(tokens), num_words)]
    return "\n".join(lines)


def planted() -> dict[str, str]:
    """The D4 cases: one item in many forms."""
    rng = random.Random(2)
    filler = random_text(rng, 150)
    return {
        "verbatim": LONG,
        "wrapped": wrap(LONG, 8),
        "upper case": LONG.upper(),
        "other Unicode": unicodedata.normalize("NFD", LONG).replace("“two”", '"two"'),
        "in filler": f"{filler}\n{LONG}\n{filler}",
        "wrapped in filler": f"{filler}\n{wrap(LONG, 3)}\n{filler}",
        "first two thirds": " ".join(LONG.split()[:36]),
        "short item": f"{filler} which planet\nhas the largest MOON {filler}",
        "choice": f"{filler} The glass fell, it broke on the floor. {filler}",
    }


def clean() -> list[str]:
    rng = random.Random(4)
    shared = "how much does the farmer earn in one week if he eats six of the eggs"
    near = ["Which planet has the smallest moon?", "The glass fell. It flew away.", shared]
    return [*(random_text(rng, 80) for _ in range(30)), *near]


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    root = tmp_path_factory.mktemp("decontaminate")
    rows = [{"question": LONG, "answer": "42"}, {"question": SHORT}, {**CHOICE, "gold": 1}]
    recipe = Decontaminate(
        name="out",
        version="dev",
        documents=write_documents(root, [*clean(), *planted().values()], shard_documents=20),
        tasks=(write_tasks(root, rows),),
    )
    summary = build(recipe, root)
    out = FakeContext(recipe, root).out
    kept = [document["text"] for document in read_documents(out)]
    lines = Path(out, "contaminated.jsonl").read_text(encoding="utf-8").splitlines()
    evidence = [json.loads(line) for line in lines]
    return summary, kept, evidence


@pytest.mark.parametrize("form", planted())
def test_an_item_is_found_in_every_form(result, form):
    assert planted()[form] not in result[1]


def test_clean_documents_stay(result):
    assert result[1] == clean()


def test_what_was_removed_is_counted_and_shown(result):
    summary, _, evidence = result
    assert summary.counts.balance == 0
    assert summary.counts.dropped == {"contains_toy": len(planted())}
    assert summary.numbers["planted_items_found"] == 3
    assert len(evidence) == len(planted())
    assert [row["item"] for row in evidence] == [0] * 7 + [1, 2]
    assert "which planet has the largest moon" in evidence[7]["excerpt"]


def test_an_index_survives_saving(tmp_path):
    write_tasks(tmp_path, [{"question": LONG}, {"question": SHORT}])
    items = list(read_items(str(tmp_path / "artifacts/tasks/toy@dev")))
    index = ItemIndex.build(items, **SETTINGS)
    index.save(str(tmp_path / "index.npz"))
    loaded = ItemIndex.load(str(tmp_path / "index.npz"))
    for text in planted().values():
        assert loaded.matches(text) == index.matches(text)


def test_choices_may_be_lettered(tmp_path):
    choices = {"text": ["red", "blue and green stripes"], "label": ["A", "B"]}
    row = {"question": "Pick one colour", "choices": choices, "answerKey": "B"}
    write_tasks(tmp_path, [row])
    items = list(read_items(str(tmp_path / "artifacts/tasks/toy@dev")))
    assert items[0].text == "Pick one colour blue and green stripes"


def test_tasks_that_give_nothing_to_search_are_refused(tmp_path):
    toy = ToyDocuments(name="toy", version="dev")
    with pytest.raises(ValueError, match=r"tasks=\(\)"):
        Decontaminate(name="x", version="dev", documents=toy, tasks=())
    tasks = write_tasks(tmp_path, [{"question": "only three words"}])
    with pytest.raises(StageError, match=r"without a searchable item: toy \(0 of 1\)"):
        build(Decontaminate(name="x", version="dev", documents=toy, tasks=(tasks,)), tmp_path)


def recalls(**settings) -> dict[str, float]:
    rng = random.Random(6)
    items = [Item("toy", number, random_text(rng, 14 + number)) for number in range(40)]
    index = ItemIndex.build(items, **{**SETTINGS, **settings})
    return {row["disguise"]: row["recall"] for row in plant(index)}


def test_every_disguise_but_changed_words_is_seen_through():
    found = recalls()
    changed = {name for name in found if "changed" in name}
    assert {name: recall for name, recall in found.items() if recall < 1} == {
        name: found[name] for name in changed
    }
    assert found["20 % of words changed"] < 0.2


def test_shorter_ngrams_find_items_with_changed_words():
    found = recalls(ngram_size=5, min_overlap=0.2)
    assert found["10 % of words changed"] > 0.95
    assert found["20 % of words changed"] > 0.7


def test_a_search_that_misses_what_is_planted_stops(monkeypatch):
    monkeypatch.setattr(ItemIndex, "matches", lambda *_: [])
    with pytest.raises(StageError, match="planted item"):
        recalls()


def test_ngrams_longer_than_items_are_refused(tmp_path):
    toy = ToyDocuments(name="toy", version="dev")
    tasks = (write_tasks(tmp_path, [{"question": SHORT}]),)
    with pytest.raises(ValueError, match="raise whole_item_words too"):
        Decontaminate(name="x", version="dev", documents=toy, tasks=tasks, ngram_size=20)
