import json
import random
from collections.abc import Mapping
from pathlib import Path

import pytest

from marin_dagster.data.dedup import Deduplicate
from marin_dagster.data.documents import ShardFile, document_id, read_documents, shard_paths
from marin_dagster.data.paragraphs import DeduplicateParagraphs
from marin_dagster.data.words import ngram_hashes, word_hashes, words
from marin_dagster.recipe import Placement, StageError, Summary
from tests.fake_context import FakeContext, build
from tests.unit.data.toy_documents import (
    ToyDocuments,
    in_this_process,
    random_text,
    write_documents,
)


def similarity(one: str, other: str) -> float:
    grams = [set(ngram_hashes(word_hashes(words(text)), 5).tolist()) for text in (one, other)]
    return len(grams[0] & grams[1]) / len(grams[0] | grams[1])


def edited(rng: random.Random, text: str, num_edits: int) -> str:
    tokens = text.split()
    for place in rng.sample(range(len(tokens)), num_edits):
        tokens[place] = f"edit{rng.randrange(10**6)}"
    return " ".join(tokens)


def deduplicate(
    root: Path, texts: list[str], *, workers: int = 2, **fields
) -> tuple[Summary, list[str], list[dict]]:
    toy = write_documents(root, texts, shard_documents=50, source=fields.pop("source", "toy"))
    recipe = Deduplicate(name="out", version="dev", documents=toy, **fields)
    summary = build(recipe, root, placement=Placement(workers=workers))
    out = FakeContext(recipe, root).out
    lines = Path(out, "duplicates.jsonl").read_text(encoding="utf-8").splitlines()
    evidence = [json.loads(line) for line in lines]
    return summary, [document["text"] for document in read_documents(out)], evidence


def match(
    root: Path, texts: list[str], **fields
) -> tuple[list[str], list[dict], Mapping[str, float]]:
    """Texts that stay, evidence and numbers, found in this process."""
    with in_this_process():
        summary, kept, evidence = deduplicate(root, texts, **fields)
    return kept, evidence, summary.numbers


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    """60 documents, 40 near copies of the first 40, 10 that share half of the last ten."""
    rng = random.Random(1)
    base = [random_text(rng, 120) for _ in range(60)]
    near = [edited(rng, text, rng.randrange(1, 3)) for text in base[:40]]
    half = [" ".join(text.split()[:60]) + " " + random_text(rng, 60) for text in base[50:]]
    texts = base + near + half
    random.Random(0).shuffle(texts)
    summary, kept, evidence = deduplicate(tmp_path_factory.mktemp("planted"), texts)
    return base, near, half, summary, kept, evidence


def test_planted_near_copies_are_found(planted):
    base, near, _, summary, kept, _ = planted
    pairs = [(b, n) for b, n in zip(base, near, strict=False) if similarity(b, n) >= 0.85]
    assert len(pairs) >= 20
    found = sum(not (b in kept and n in kept) for b, n in pairs)
    assert found >= 0.95 * len(pairs)
    assert summary.numbers["dropped/fuzzy_duplicate"] >= found


def test_documents_that_share_half_their_text_stay(planted):
    base, _, half, _, kept, _ = planted
    assert all(similarity(b, h) > 0.25 for b, h in zip(base[50:], half, strict=True))
    assert {*base[50:], *half} <= set(kept)


def test_every_removed_document_has_a_kept_one_that_is_truly_similar(planted):
    base, near, half, summary, kept, evidence = planted
    by_id = {document_id(text): text for text in [*base, *near, *half]}
    assert len(evidence) == summary.counts.read - summary.counts.kept > 0
    for row in evidence:
        assert by_id[row["kept"]] in kept
        true = similarity(by_id[row["removed"]], by_id[row["kept"]])
        assert true == pytest.approx(row["similarity"], abs=1e-6)
        assert true >= 0.75


def test_one_worker_gives_the_same_as_two(planted, tmp_path):
    base, near, half, summary, kept, evidence = planted
    texts = base + near + half
    random.Random(0).shuffle(texts)
    assert deduplicate(tmp_path, texts, workers=1) == (summary, kept, evidence)


LONG = "one two three four five six seven eight nine ten"


def test_exact_copies_short_texts_and_empty_texts(tmp_path):
    short = ["cat", "dog", "Cat!", "", " \n ", "世界", "世界。"]
    texts = [*short, LONG, LONG.upper().replace(" ", "\n"), LONG + " eleven"]
    kept, removals, numbers = match(tmp_path, texts, min_similarity=0.95, num_bands=20)
    assert kept == ["dog", "Cat!", "世界。", LONG, LONG + " eleven"]
    assert [row["kind"] for row in removals] == ["exact"] * 3
    assert numbers["dropped/empty"] == 2
    assert numbers["short_documents"] == 5


def test_a_shard_of_nothing_but_short_texts_passes(tmp_path):
    assert match(tmp_path, ["cat", "dog"])[0] == ["cat", "dog"]


@pytest.mark.parametrize("recipe", [Deduplicate, DeduplicateParagraphs])
def test_a_shard_without_documents_passes(tmp_path, recipe):
    toy = write_documents(tmp_path, [LONG, LONG + "!", LONG + " eleven"], shard_documents=1)
    with ShardFile(shard_paths(FakeContext(toy, tmp_path).out)[1]):
        pass
    made = recipe(name="out", version="dev", documents=toy)
    with in_this_process():
        assert build(made, tmp_path).counts.read == 2


@pytest.mark.parametrize("keep", ["first", "longest"])
def test_copies_are_found_across_shards_and_one_chooses_which_stays(tmp_path, keep):
    rng = random.Random(3)
    text = random_text(rng, 60)
    filler = [random_text(rng, 40) for _ in range(60)]
    longer = text + " with a longer end"
    kept, removals, _ = match(tmp_path, [text, *filler, longer], keep=keep)
    stays = text if keep == "first" else longer
    assert set(kept) == {stays, *filler}
    assert removals[0]["kept"] == document_id(stays)


def test_a_chain_of_pairs_does_not_collapse(tmp_path):
    tokens = [f"w{i}" for i in range(130)]
    chain = [" ".join(tokens[start : start + 100]) for start in (0, 10, 20, 30)]
    assert similarity(chain[0], chain[1]) > 0.75 > similarity(chain[0], chain[2])
    kept, _, _ = match(tmp_path, chain, keep="first", num_bands=40, rows_per_band=4)
    assert kept == [chain[0], chain[2]]


def test_an_exact_copy_of_a_near_copy_names_a_document_that_was_kept(tmp_path):
    text = random_text(random.Random(5), 80)
    shorter = " ".join(text.split()[:-1])
    kept, removals, _ = match(tmp_path, [shorter, shorter.upper(), text])
    assert kept == [text]
    assert {row["kept"] for row in removals} == {document_id(text)}
    assert sorted(row["kind"] for row in removals) == ["exact", "fuzzy"]


def test_long_documents_are_compared_by_their_beginning(tmp_path):
    rng = random.Random(8)
    text = random_text(rng, 300)
    texts = [text + random_text(rng, 300), text + random_text(rng, 300)]
    assert len(match(tmp_path / "all", texts)[0]) == 2
    assert len(match(tmp_path / "cut", texts, max_characters=1000)[0]) == 1


def test_comparisons_of_one_document_are_limited_and_the_limit_is_counted(tmp_path):
    rng = random.Random(9)
    template = random_text(rng, 70)
    texts = [template + " " + random_text(rng, 30) for _ in range(12)]
    fields = {"num_bands": 100, "rows_per_band": 1, "min_similarity": 0.9}
    kept, _, numbers = match(tmp_path, texts, max_comparisons=3, **fields)
    assert kept == texts
    assert numbers["comparisons_cut"] == 8
    assert numbers["comparisons"] == 0 + 1 + 2 + 3 * 9


def test_a_new_version_loses_what_earlier_ones_have(tmp_path):
    rng = random.Random(11)
    old = [random_text(rng, 80) for _ in range(4)]
    other = [random_text(rng, 80) for _ in range(3)]
    fresh = [random_text(rng, 80) for _ in range(3)]
    crawls = {
        "first": [*old, old[0].upper(), old[0] + " changed"],
        "second": [other[0], old[0] + " and longer", old[1].lower(), *other[1:]],
        "third": [other[2] + " again", fresh[0], old[3], *fresh[1:], fresh[0]],
    }
    earlier: tuple[Deduplicate, ...] = ()
    kept, evidence, numbers = {}, {}, {}
    for day, (name, texts) in enumerate(crawls.items(), start=1):
        crawl = write_documents(tmp_path, texts, name=name, shard_documents=2)
        recipe = Deduplicate(name=f"day-{day}", version="dev", documents=crawl, against=earlier)
        with in_this_process():
            numbers[name] = build(recipe, tmp_path).numbers
        out = FakeContext(recipe, tmp_path).out
        kept[name] = [document["text"] for document in read_documents(out)]
        lines = Path(out, "duplicates.jsonl").read_text(encoding="utf-8").splitlines()
        evidence[name] = [json.loads(line) for line in lines]
        earlier = (*earlier, recipe)
    assert kept["first"] == [*old[1:], old[0] + " changed"]
    assert kept["second"] == other
    assert kept["third"] == fresh
    first, second, third = (recipe.address for recipe in earlier)
    assert [(row["kind"], row["kept_in"]) for row in evidence["third"]] == [
        ("fuzzy", second),
        ("exact", first),
        ("exact", third),
    ]
    assert evidence["third"][0]["kept"] == document_id(other[2])
    assert [numbers[name]["copies_of_earlier"] for name in crawls] == [0, 2, 2]


def test_documents_are_not_compared_with_themselves():
    toy = ToyDocuments(name="toy", version="dev")
    with pytest.raises(ValueError, match="nothing would be left"):
        Deduplicate(name="x", version="dev", documents=toy, against=(toy,))


def test_a_source_that_loses_almost_everything_stops_the_stage(tmp_path):
    texts = [LONG + " same" for _ in range(120)] + ["another text"]
    with pytest.raises(StageError, match=r"99\.2% of source 'copies'") as caught:
        deduplicate(tmp_path, texts, source=["copies"] * 120 + ["fine"])
    assert caught.value.reason == "bad_input"
    assert caught.value.message.count("'kept'") == 3


def test_settings_that_would_find_nothing_are_refused():
    toy = ToyDocuments(name="toy", version="dev")
    with pytest.raises(ValueError, match=r"with probability 0\.00"):
        Deduplicate(
            name="x",
            version="dev",
            documents=toy,
            num_bands=2,
            rows_per_band=64,
            min_similarity=0.8,
        )
    with pytest.raises(ValueError, match="keep="):
        Deduplicate(name="x", version="dev", documents=toy, keep="shortest")
