import json

import pytest

from marin_dagster.data.documents import DocumentWriter, new_document, read_documents, read_lines
from marin_dagster.data.filter import (
    C4Quality,
    FilterDocuments,
    FineWebQuality,
    GopherQuality,
    GopherRepetition,
    MaxCharacters,
    MinWords,
)
from marin_dagster.data.quality import TrainClassifier
from tests.fake_context import FakeContext, build
from tests.unit.data.test_quality import texts
from tests.unit.data.toy_documents import ToyDocuments, write_documents

PROSE = (
    "The old mill stands at the edge of the village, and nobody knows who built it. "
    "People say that a family of bakers lived there until the war. Children play in the yard with "
    "an old cart, which has lost its wheels. In winter the river freezes and the wheel stands "
    "still. My grandfather used to be the one to open the gate in spring. He never told us why."
)


@pytest.mark.parametrize(
    ("rule", "text", "reason"),
    [
        (GopherQuality(), "Too short.", "gopher_short_doc"),
        (GopherQuality(), "## # " * 60 + PROSE, "gopher_too_many_hashes"),
        (GopherQuality(), PROSE, None),
        (GopherRepetition(), "spam line\n" * 50, "dup_line_frac"),
        (GopherRepetition(), PROSE, None),
        (C4Quality(), PROSE + "\nLorem ipsum dolor sit amet.", "lorem_ipsum"),
        (C4Quality(), "One sentence only.", "too_few_sentences"),
        (FineWebQuality(), "word\n" * 50, "line_punct_ratio"),
        (FineWebQuality(), PROSE, None),
        (MinWords(words=3), "two words", "too_few_words"),
        (MinWords(words=3), "now three words", None),
        (MaxCharacters(characters=5), "123456", "too_long"),
        (GopherQuality(), " \n ", "empty"),
    ],
)
def test_each_rule_drops_what_it_names_and_keeps_prose(rule, text, reason):
    assert rule.judge(text)[1] == reason


def test_c4_removes_lines_and_keeps_the_document():
    text, reason = C4Quality().judge(PROSE + "\nMenu | Login\nPlease enable javascript in it.")
    assert (text, reason) == (PROSE, None)


def test_thresholds_are_used():
    assert GopherQuality(min_words=200).judge(PROSE)[1] == "gopher_short_doc"
    assert (
        GopherQuality(min_words=1, min_stop_words=0).judge("Hello there my good old friend.")[1]
        is None
    )


def test_reasons_are_counted_and_scores_stand_beside_the_kept_documents(tmp_path):
    good, bad = texts(True), texts(False)
    classifier = TrainClassifier(
        name="toy",
        version="dev",
        positive=(write_documents(tmp_path, good, name="good"),),
        negative=(write_documents(tmp_path, bad, name="bad"),),
        dim=8,
        bucket=1000,
    )
    build(classifier, tmp_path)
    mixed = ToyDocuments(name="mixed", version="dev")
    with DocumentWriter(FakeContext(mixed, tmp_path).out, shard_documents=8) as writer:
        for text in [*good[:8], *bad[:4], "short", "", "deutsch " * 9]:
            language = "de" if text.startswith("deutsch") else "en"
            writer.write(new_document(text, source="toy", metadata={"language": language}))
    recipe = FilterDocuments(
        name="toy",
        version="dev",
        documents=mixed,
        classifier=classifier,
        min_quality=0.5,
        languages=("en",),
        rules=(MinWords(words=3),),
    )
    summary = build(recipe, tmp_path)
    assert summary.counts.dropped == {
        "empty": 1, "language": 1, "low_quality": 4, "too_few_words": 1,
    }  # fmt: skip
    assert summary.counts.balance == 0
    assert {row["reason"] for row in summary.tables["dropped"]} == set(summary.counts.dropped)
    out = FakeContext(recipe, tmp_path).out
    kept = [document["id"] for document in read_documents(out)]
    rows = [
        json.loads(line)
        for shard in ("00000", "00001")
        for line in read_lines(f"{out}/attributes/quality/{shard}.jsonl.zst")
    ]
    assert [row["id"] for row in rows] == kept
    assert all(row["attributes"]["quality"][0][2] >= 0.5 for row in rows)


def test_a_filter_that_would_do_nothing_is_refused(tmp_path):
    toy = ToyDocuments(name="toy", version="dev")
    with pytest.raises(ValueError, match="filters nothing"):
        FilterDocuments(name="x", version="dev", documents=toy)
    with pytest.raises(ValueError, match="give both, or neither"):
        FilterDocuments(name="x", version="dev", documents=toy, min_quality=0.5)
