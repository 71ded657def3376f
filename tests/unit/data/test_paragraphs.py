import json
from pathlib import Path

import pytest

from marin_dagster.data.documents import document_id, read_documents
from marin_dagster.data.paragraphs import DeduplicateParagraphs, split
from marin_dagster.recipe import Placement
from tests.fake_context import FakeContext, build
from tests.unit.data.toy_documents import ToyDocuments, in_this_process, write_documents

FOOTER = "All rights reserved by the owner of these pages."
TEXTS = [
    f"A first text about a red kite.\n\n{FOOTER}",
    f"  An indented second text, on and on.\n\n\n{FOOTER.upper()}\n\nYes.\n\nIts end is its own.",
    FOOTER.replace(" ", "\n"),
    "Yes.\n\nNo.\n\nYes.",
    "Say it once more to me.\n\nSay it once more to me!\n",
    "",
]


def run(root: Path, texts: list[str], *, workers: int = 1, **fields):
    toy = write_documents(root, texts, shard_documents=2)
    recipe = DeduplicateParagraphs(name="out", version="dev", documents=toy, **fields)
    summary = build(recipe, root, placement=Placement(workers=workers))
    out = FakeContext(recipe, root).out
    lines = Path(out, "paragraphs.jsonl").read_text(encoding="utf-8").splitlines()
    return summary, list(read_documents(out)), [json.loads(line) for line in lines]


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    with in_this_process():
        return run(tmp_path_factory.mktemp("paragraphs"), TEXTS)


def test_the_first_stays_and_repeats_go(result):
    _, documents, _ = result
    assert [document["text"] for document in documents] == [
        TEXTS[0],
        "  An indented second text, on and on.\n\n\nYes.\n\nIts end is its own.",
        TEXTS[3],
        "Say it once more to me.",
    ]


def test_what_went_is_counted(result):
    summary, documents, _ = result
    assert summary.counts.balance == 0
    assert summary.counts.dropped == {"empty": 1, "nothing_new": 1}
    assert summary.numbers["paragraphs_removed"] == 3
    assert summary.numbers["documents_changed"] == 3
    removed = 2 * len(FOOTER) + len("Say it once more to me!\n")
    assert summary.numbers["characters_removed"] == removed
    assert summary.numbers["characters"] == sum(len(document["text"]) for document in documents)


def test_every_removed_paragraph_names_the_document_that_keeps_it(result):
    _, _, evidence = result
    assert [row["id"] for row in evidence] == [document_id(TEXTS[i]) for i in (1, 2, 4)]
    kept = [paragraph["kept"] for row in evidence for paragraph in row["paragraphs"]]
    assert kept == [document_id(TEXTS[i]) for i in (0, 0, 4)]
    assert evidence[0]["paragraphs"][0]["text"] == FOOTER.upper()


def test_two_workers_give_the_same_as_one(result, tmp_path):
    assert run(tmp_path, TEXTS, workers=2) == result


def test_lines_are_a_unit_of_their_own(tmp_path):
    texts = ["the menu of the site\nSome text of its own.", "New text, too.\nThe menu of the site"]
    with in_this_process():
        _, documents, _ = run(tmp_path, texts, unit="line")
    assert [document["text"] for document in documents] == [texts[0], "New text, too."]


@pytest.mark.parametrize("text", TEXTS)
def test_the_parts_of_a_text_are_the_text(text):
    for unit in ("paragraph", "line"):
        assert "".join(part + gap for part, gap in split(text, unit)) == text


def test_unknown_units_are_refused():
    toy = ToyDocuments(name="toy", version="dev")
    with pytest.raises(ValueError, match="unit='sentence'"):
        DeduplicateParagraphs(name="x", version="dev", documents=toy, unit="sentence")  # pyright: ignore
    with pytest.raises(ValueError, match="min_words=0"):
        DeduplicateParagraphs(name="x", version="dev", documents=toy, min_words=0)
