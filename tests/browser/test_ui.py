"""The road of a user through Dagster's UI: a real server with its daemon, a real browser.

The tests follow one another: each uses what those before it have built. About two minutes.
"""

import json
import re
from urllib.parse import quote

from marin_dagster.process import process_exists
from tests.browser import ui
from tests.browser.ui import ended
from tests.dagster_server import wait_for

OLD, NEW = "seen@2026.01.01", "seen@2026.02.03"


def test_lineage_shows_every_stage_and_its_edges(page):
    ui.lineage(page)
    for stage in ("raw", "text", "deduped", "checkpoints", "build"):
        page.wait(f"//*[name()='svg']//*[text()='{stage}']")
    assert len(page.driver.find_elements("xpath", "//*[name()='svg']//*[name()='path']")) >= 3


def test_a_click_builds_a_target_and_all_that_it_needs(page):
    run = ui.materialize(page, "build", f"deduped/{OLD}")
    assert ended(page, run) == "SUCCESS"
    made = {
        found["tags"].get("marin/artifact"): found
        for found in page.runs()
        if found["tags"]["marin/target"] == "deduped/seen__2026.01.01"
    }
    text, joined = made["text/seen__2026.01.01"], made["deduped/seen__2026.01.01"]
    assert "raw/seen__2026.01.01" in made
    assert text["tags"]["marin/experiment"] == "seen"
    assert text["tags"]["marin/attempt"] == "1"
    page.open(f"/runs?q%5B0%5D={quote('tag:marin/artifact=text/seen__2026.01.01', safe='')}")
    page.wait(f"//a[contains(@href, '{text['runId']}')]")
    assert not page.driver.find_elements("xpath", f"//a[contains(@href, '{joined['runId']}')]")


def test_a_click_materializes_a_partition_and_its_page_tells_of_it(page):
    run = ui.materialize(page, "raw", NEW)
    assert ended(page, run) == "SUCCESS"
    ui.partition(page, "raw", NEW)
    page.shows("other versions")
    link = page.wait("//td//a[text()='2026.01.01']")
    assert link.get_attribute("href").endswith(
        "/assets/raw?view=partitions&partition=seen%402026.01.01"
    )


def test_an_edited_recipe_shows_as_a_warning(page, laboratory):
    laboratory.edit(suffix="!")
    assert ended(page, ui.materialize(page, "text", OLD)) == "SUCCESS"
    ui.partition(page, "text", OLD)
    page.shows("Not what would be built now")
    page.shows("recipe suffix:")
    ui.checks(page, "text")
    page.shows("recipe suffix:")
    page.wait("//*[text()='Evaluation result']/..//*[contains(., 'Failed')]")
    laboratory.edit()


def test_a_training_is_followed_live_and_cancelled(page, laboratory):
    laboratory.edit(seconds=120)
    run = ui.materialize(page, "checkpoints", OLD)
    values = wait_for(
        lambda: (found := page.series("checkpoints", OLD, "train/loss"))[1:] and found,
        ui.RUN_SECONDS,
        "two points of train/loss",
    )
    assert values == sorted(values, reverse=True)
    ui.live_plots(page, "checkpoints")
    page.wait("//canvas")
    assert {r["runId"]: r["status"] for r in page.runs()}[run] == "STARTED"
    worker = _worker(page, run)
    assert process_exists(worker)
    ui.terminate(page, run)
    assert ended(page, run) == "CANCELED"
    wait_for(lambda: not process_exists(worker), 60, f"the end of process {worker}")
    page.open(f"/runs/{run}")
    page.shows("Canceled")
    laboratory.edit()


def test_two_versions_are_built_side_by_side_by_the_daemon(page):
    config = {"ops": {"submit": {"config": {"targets": ["text/seen@2026.*", "raw/seen@*"]}}}}
    run = ui.launchpad(page, "build_in_parallel", json.dumps(config))
    assert ended(page, run) == "SUCCESS"
    (backfill,) = page.backfills()
    assert ui.backfill_ended(page, backfill["id"]) == "COMPLETED_SUCCESS"
    page.open(f"/runs/b/{backfill['id']}")
    page.shows("100% completed")
    for stage, key in (("text", NEW), ("raw", "seen@dev")):
        ui.partition(page, stage, key)


def _worker(page, run: str) -> int:
    query = """
    query ($run: ID!) { logsForRun(runId: $run) { ... on EventConnection {
        events { ... on MessageEvent { message } }
    } } }
    """
    events = page.server.ask(query, run=run)["logsForRun"]["events"]
    found = re.search(r"worker process (\d+)", "\n".join(e.get("message", "") for e in events))
    assert found is not None
    return int(found[1])
