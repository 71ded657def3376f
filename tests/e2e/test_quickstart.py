"""The quickstart, from a made-up site to a report, as a newcomer runs it."""

import itertools

import dagster as dg

from marin_dagster.experiments import catalog
from marin_dagster.recipe import walk
from marin_dagster.store import Store


def test_every_artifact_is_complete_and_intact(quickstart):
    store = Store(quickstart.prefix)
    for address, recipe in walk([catalog()["reports/quickstart@dev"]]).items():
        record = quickstart.record(address)
        assert store.damage(recipe, record, checksums=True) == [], address


def test_counts_balance_from_the_site_to_the_tokens(quickstart):
    stages = ("crawl", "text", "filtered", "deduped", "decontaminated", "tokenized")
    counts = [quickstart.record(f"{stage}/quickstart@dev").summary.counts for stage in stages]
    assert all(found.balance == 0 and found.kept > 0 for found in counts)
    for above, below in itertools.pairwise(counts[1:]):
        assert below.read == above.kept


def test_each_trap_of_the_site_is_met_and_counted(quickstart):
    def dropped(stage):
        counts = quickstart.record(f"{stage}/quickstart@dev").summary.counts
        return {reason for reason, number in counts.dropped.items() if number}

    assert "robots_denied" in dropped("crawl")
    assert {"too_short", "http_404", "not_html"} <= dropped("text")
    assert {"language", "low_quality", "too_few_words"} <= dropped("filtered")
    assert dropped("deduped") == {"exact_duplicate", "fuzzy_duplicate"}
    assert dropped("decontaminated") == {"contains_story_cloze", "contains_story_heldout"}


def test_the_model_learns_its_data(quickstart):
    numbers = quickstart.record("checkpoints/quickstart@dev").summary.numbers
    assert numbers["eval_loss"] < 0.35 * numbers["unigram_entropy"]
    assert "Loss" in quickstart.record("checkpoints/quickstart@dev").plots
    runs = quickstart.data("checkpoints/quickstart@dev").glob(".wandb/wandb/offline-run-*")
    assert list(runs), "the curves can be synced later"


def test_the_chat_model_answers_and_stops_by_itself(quickstart):
    numbers = quickstart.record("sft/quickstart@dev").summary.numbers
    assert numbers["stopped_share"] == 1.0


def test_the_model_scores_above_chance_on_stories_that_it_never_saw(quickstart):
    numbers = quickstart.record("evals/quickstart@dev").summary.numbers
    assert numbers["story_cloze/acc"] > 0.31  # chance is 0.25, its standard error 0.03


def test_the_runs_and_their_lineage_are_in_the_instance(quickstart, monkeypatch):
    monkeypatch.setenv("DAGSTER_HOME", str(quickstart.folder))
    monkeypatch.chdir(quickstart.folder)
    with dg.DagsterInstance.get() as instance:
        for address in ("crawl/quickstart@dev", "evals/quickstart@dev"):
            key = dg.AssetKey(address.partition("/")[0])
            assert instance.get_materialized_partitions(key) >= {"quickstart@dev"}
            assert instance.get_run_by_id(quickstart.record(address).run_id).is_success


def test_a_second_build_reuses_everything(quickstart):
    done = quickstart.run("marin", "build", "reports/quickstart@dev", "--run")
    assert done.returncode == 0
    assert "0 to run" in done.stdout


def test_the_report_is_one_page_that_needs_no_network(quickstart):
    page = (quickstart.data("reports/quickstart@dev") / "index.html").read_text()
    assert "checkpoints/quickstart@dev" in page
    assert "<script src" not in page
    assert 'href="http' not in page.replace('href="https://arxiv.org', "")
