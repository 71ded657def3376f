"""What one sees in Dagster of a build: live numbers, plots, comparisons, tags, links to code."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import dagster as dg
import pytest

from assets import metadata
from assets.progress import interval
from assets.references import code_references
from marin_dagster.definitions import defs
from marin_dagster.experiments import catalog
from marin_dagster.kinds import Documents
from marin_dagster.plots import line_chart
from marin_dagster.recipe import Context, Summary
from marin_dagster.store import Store
from tests.integration.test_assets import run

DAY = 86_400


@pytest.fixture
def instance():
    with dg.DagsterInstance.ephemeral() as found:
        yield found


def series(instance, stage: str, key: str) -> list[dict[str, float]]:
    """The metadata of a partition's observations, oldest first."""
    wanted = dg.AssetRecordsFilter(dg.AssetKey(stage), asset_partitions=[key])
    rows = instance.fetch_observations(wanted, limit=1_000, ascending=True).records
    return [
        {name: value.value for name, value in row.asset_observation.metadata.items()}
        for row in rows
    ]


def test_a_training_leaves_a_series_of_numbers_from_first_to_last(instance, prefix, edit):
    edit("checkpoints/toy@dev", seconds=2.5)
    assert run(instance, "build", "checkpoints/toy@dev").success
    rows = series(instance, "checkpoints", "toy@dev")
    assert 3 <= len(rows) <= 5
    assert {"train/loss", "train/grad_norm", "tokens", "seconds"} <= rows[0].keys()
    assert [row["seconds"] for row in rows] == sorted(row["seconds"] for row in rows)
    assert rows[0]["seconds"] < 0.5
    assert rows[-1]["seconds"] > 1.9
    assert series(instance, "raw", "toy@dev") == []  # it was over before anybody could look


def test_a_training_that_fails_keeps_its_last_numbers(instance, prefix, edit):
    edit("checkpoints/toy@dev", seconds=0.8, ending="raise")
    assert not run(instance, "build", "checkpoints/toy@dev").success
    rows = series(instance, "checkpoints", "toy@dev")
    assert rows[-1]["seconds"] > rows[0]["seconds"]


def test_ten_days_are_a_few_thousand_events_and_a_minute_is_many():
    def events(seconds: float) -> int:
        now, count = 0.0, 0
        while now < seconds:
            now += interval(now)
            count += 1
        return count

    assert 40 <= events(60) <= 60
    assert 3_000 <= events(10 * DAY) <= 5_000


def test_runs_are_tagged_however_they_were_launched(instance, prefix):
    assert run(instance, "build", "text/toy@2026.01.01").success
    assert run(instance, "raw", "toy@2026.02.03").success
    tags = {found.tags.get("marin/artifact"): found.tags for found in instance.get_runs()}
    wanted = {"marin/experiment": "toys", "marin/attempt": "1"}
    for artifact, target in (
        ("text/toy__2026.01.01", "text/toy__2026.01.01"),
        ("raw/toy__2026.01.01", "text/toy__2026.01.01"),
        ("raw/toy__2026.02.03", "raw/toy__2026.02.03"),
    ):
        assert (wanted | {"marin/target": target}).items() <= tags[artifact].items()
    found = instance.get_runs(dg.RunsFilter(tags={"marin/target": "text/toy__2026.01.01"}))
    assert len(found) == 3


def test_a_partition_is_compared_with_its_other_versions(instance, prefix, edit):
    run(instance, "raw", "toy@2026.01.01")
    edit("raw/toy@2026.02.03", words=("one", "two", "three"))
    result = run(instance, "raw", "toy@2026.02.03")
    found = result.asset_materializations_for_node("raw")[0].metadata
    link = "[2026.01.01](/assets/raw?view=partitions&partition=toy%402026.01.01)"
    assert f"| {link} | words[2]: None → three |" in found["other versions"].value
    assert "| number | 2026.02.03 | 2026.01.01 |" in found["numbers by version"].value
    assert "| words | 3 | 2 |" in found["numbers by version"].value


def test_drift_shows_on_the_page_of_the_partition(instance, prefix, edit):
    run(instance, "build", "text/toy@2026.01.01")
    edit("text/toy@2026.01.01", suffix="!")
    result = run(instance, "text", "toy@2026.01.01")
    found = result.asset_materializations_for_node("text")[0].metadata
    assert "[check](/assets/text?view=checks)" in found["drift"].value
    assert "recipe suffix:  → !" in found["drift"].value


def test_failed_attempts_are_told(instance, prefix, edit):
    run(instance, "raw", "toy@dev")
    edit("text/toy@dev", misbehave="raise")
    assert not run(instance, "text", "toy@dev").success
    edit("text/toy@dev", misbehave="")
    result = run(instance, "text", "toy@dev")
    found = result.asset_materializations_for_node("text")[0].metadata
    assert re.search(r"\| 1 \| diverged \| .* \| as asked \|", found["attempt history"].value)
    assert found["attempts"].value == 2


@dataclass(frozen=True, kw_only=True)
class Drawn(Documents):
    """Plots ten thousand points, and a table of fifty long rows."""

    stage: ClassVar[str] = "raw"

    def build(self, ctx: Context) -> Summary:
        Path(ctx.out, "words.txt").write_text("one")
        steps = range(10_000)
        curve = line_chart({"training": (steps, [1 / (1 + x) for x in steps])}, "Loss", "x", "y")
        rows = [{"word": "w" * 40, "place": place} for place in range(50)]
        return Summary(numbers={}, plots={"Loss": curve}, tables={"Words": rows, "One": rows[:1]})


@pytest.fixture
def drawn(prefix, monkeypatch):
    recipe, store = Drawn(name="drawn", version="dev"), Store(prefix)
    monkeypatch.setitem(catalog(), recipe.address, recipe)
    return metadata.of(store, recipe, store.build(recipe))


def test_plots_and_tables_are_shown_without_a_click(drawn):
    assert drawn["Loss"].value.startswith("![](<data:image/svg+xml,")
    for name in ("Loss", "One", "inputs"):
        assert isinstance(drawn[name], dg.MarkdownMetadataValue)
        assert len(drawn[name].value) < metadata.INLINE_CHARACTERS
    assert isinstance(drawn["Words"], dg.TableMetadataValue)
    assert len(drawn["Words"].records) == metadata.TABLE_ROWS + 1
    assert drawn["Words"].records[-1].data["word"] == "20 more"
    assert 10_000 < len(drawn["plots"].value) < 60_000  # the whole of it, behind a click


def test_assets_lead_to_their_code(monkeypatch):
    def references():
        return code_references("raw", [catalog()["raw/toy@dev"]]).code_references

    asset, recipe = references()
    assert Path(asset.file_path).name == "raw.py"
    line = Path(recipe.file_path).read_text().splitlines()[recipe.line_number - 1]
    assert line.startswith("class Words(")
    monkeypatch.setenv("MARIN_REPOSITORY_URL", "https://git.test/lab/blob/main/")
    assert references()[0].url == "https://git.test/lab/blob/main/assets/raw.py#L1"


def test_descriptions_teach():
    graph = defs.resolve_asset_graph()
    for key in graph.get_all_asset_keys():
        text = graph.get(key).description
        if key.path != ["build"]:
            for words in ("| reads |", "| makes |", "| look at |", "marin plan", "up_to_date"):
                assert words in text, f"{key}: {words}"
