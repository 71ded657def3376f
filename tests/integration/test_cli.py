"""The `marin` command, as a person reads it."""

import pytest
from click.testing import CliRunner, Result

from marin_dagster import experiments
from marin_dagster.cli import main
from marin_dagster.recipe import walk
from marin_dagster.store import Store


def marin(*words: str) -> Result:
    return CliRunner().invoke(main, list(words))


def build(prefix: str, address: str) -> Store:
    store = Store(prefix)
    for recipe in walk([experiments.find(address)]).values():
        store.build(recipe)
    return store


def test_a_plan_is_a_tree_with_reasons_and_runs_nothing(prefix, tmp_path):
    result = marin("plan", "deduped/toy@dev")
    assert result.exit_code == 0
    assert result.output.splitlines()[:4] == [
        "deduped/toy@dev  run: never built",
        "├─ text/toy@dev  run: never built",
        "│  └─ raw/toy@dev  run: never built",
        "└─ raw/toy@dev  see above",
    ]
    assert "3 to run, 0 to reuse" in result.output
    assert not (tmp_path / "store").exists()


def test_a_plan_tells_the_cost_of_a_training(prefix):
    result = marin("plan", "checkpoints/quickstart@dev")
    assert "tokens" in result.output
    assert "FLOPs" in result.output


@pytest.mark.parametrize("command", ["plan", "build", "show"])
def test_an_unknown_target_gets_the_nearest_ones_and_no_traceback(prefix, command):
    result = marin(command, "deduped/tory@dev")
    assert result.exit_code == 2
    assert "target='deduped/tory@dev' is not an artifact of any experiment" in result.output
    assert "did you mean deduped/toy@dev" in result.output
    assert "Traceback" not in result.output


def test_build_without_run_only_plans(prefix, tmp_path):
    result = marin("build", "raw/toy@dev")
    assert "Nothing was run. Add --run to build." in result.output
    assert not (tmp_path / "store").exists()


def test_status_shows_state_and_drift_by_field(prefix, edit):
    build(prefix, "text/toy@2026.01.01")
    edit("text/toy@2026.01.01", suffix="!")
    result = marin("status", "*/toy@2026.01.01")
    lines = {line.split()[0]: line for line in result.output.splitlines() if "toy" in line}
    assert "complete" in lines["raw/toy@2026.01.01"]
    assert "drifted" in lines["text/toy@2026.01.01"]
    assert "recipe suffix:  → !" in lines["text/toy@2026.01.01"]
    assert "missing" in lines["deduped/toy@2026.01.01"]


def test_drift_behind_a_reused_artifact_is_told(prefix, edit):
    build(prefix, "deduped/toy@2026.01.01")
    edit("raw/toy@2026.01.01", words=("other",))
    result = marin("plan", "deduped/toy@2026.01.01")
    assert "deduped/toy@2026.01.01  reuse: complete" in result.output
    assert "behind a reused artifact: raw/toy@2026.01.01  reuse: complete; DRIFT" in result.output


def test_show_gives_the_record_of_an_artifact(prefix):
    build(prefix, "text/toy@dev")
    result = marin("show", "text/toy@dev")
    for words in ("text/toy@dev: complete", "words: read 2 = kept 2", "input        raw/toy@dev"):
        assert words in result.output


def test_diff_names_the_fields(prefix):
    result = marin("diff", "text/toy@dev", "text/toy@2026.01.01")
    assert "documents.input" in result.output
    same = marin("diff", "raw/toy@dev", "raw/toy@2026.01.01")
    assert "have the same recipe" in same.output


def test_an_unwritable_prefix_is_one_line(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MARIN_PREFIX", str(tmp_path / "file"))
    assert marin("plan", "raw/toy@dev").exit_code == 0


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("MARIN_DRIFT", "loud", "drift='loud' is neither 'warn' nor 'error'"),
        ("MARIN_WORKERS", "many", "MARIN_WORKERS='many' is not a positive whole number"),
        ("WANDB_MODE", "on", "WANDB_MODE='on' is not one of"),
    ],
)
def test_a_bad_setting_is_named(prefix, monkeypatch, name, value, words):
    monkeypatch.setenv(name, value)
    result = marin("status", "raw/toy@dev")
    assert result.exit_code == 2
    assert words in result.output


def test_a_sample_shows_rows_and_what_was_dropped(prefix):
    build(prefix, "raw/spam-examples@dev")
    result = marin("sample", "raw/spam-examples@dev", "-n", "2")
    assert result.exit_code == 0
    assert result.output.count(".jsonl.zst line ") == 2
    assert marin("sample", "raw/spam-examples@dev", "-n", "2").output == result.output
    missing = marin("sample", "raw/story-examples@dev")
    assert missing.exit_code != 0
    assert "never built; build it with" in missing.output


def test_a_sample_of_what_has_no_rows_is_refused(prefix):
    build(prefix, "raw/toy@dev")
    result = marin("sample", "raw/toy@dev")
    assert result.exit_code != 0
    assert "no rows to draw from" in result.output
