"""Turns a store and the Dagster UI into the pictures of the documentation.

Run it from the repository root, after the quickstart has been built:

    python -m docs.screenshots

It starts `dagster dev` there, drives Debian's chromium as the browser test does, and writes
docs/pictures/*.png. One picture shows a run that it launches from the UI: the partition `--launch`,
an artifact that is cheap to build. The pictures of an edited recipe and of a backfill come from a
laboratory of toys, in a temporary folder.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path

from marin_dagster.environment import read_environment
from tests.browser import ui
from tests.browser.laboratory import Laboratory, require_browser
from tests.browser.ui import Page, browser
from tests.dagster_server import ROOT, DagsterServer

TOY = "seen@2026.01.01"
TARGETS = ["text/seen@2026.*"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--key", default="quickstart@dev", help="partition to show")
    parser.add_argument("--stage", default="checkpoints", help="its asset")
    parser.add_argument("--checks", default="raw", help="asset whose checks are shown")
    parser.add_argument("--launch", default="raw/story-tasks@dev", help="partition of build to run")
    parser.add_argument("--report", default="reports/quickstart@dev", help="report; '' for none")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "pictures")
    parser.add_argument("--toys", action="store_true", help="only the pictures of toys")
    options = parser.parse_args()
    require_browser()
    options.out.mkdir(parents=True, exist_ok=True)
    if not options.toys:
        prefix = read_environment().prefix
        with DagsterServer(ROOT, MARIN_PREFIX=prefix) as server, browser() as driver:
            pictures_of_the_quickstart(Page(driver, server, options.out), options)
    with tempfile.TemporaryDirectory() as folder:
        laboratory = Laboratory(Path(folder))
        with laboratory.page(options.out) as page:
            pictures_of_toys(page, laboratory)


def pictures_of_the_quickstart(page: Page, options: argparse.Namespace) -> None:
    page.driver.set_window_size(2200, 1400)
    ui.lineage(page)
    page.shoot("lineage")
    page.driver.set_window_size(1600, 2100)
    ui.partition(page, options.stage, options.key)
    page.shoot("partition")
    page.driver.set_window_size(1600, 1100)
    ui.live_plots(page, options.stage)
    page.shoot("live")
    run = ui.materialize(page, "build", options.launch, lambda: page.shoot("materialize"))
    finish(page, run)
    page.open(f"/runs/{run}")
    page.shows("Success")
    page.shoot("run")
    ui.checks(page, options.checks)
    page.shoot("checks")
    if options.report:
        report(page, options.report)


def pictures_of_toys(page: Page, laboratory: Laboratory) -> None:
    """An artifact whose recipe was edited, and two versions built by one backfill."""
    finish(page, ui.materialize(page, "build", f"text/{TOY}"))
    laboratory.edit(suffix="!")
    finish(page, ui.materialize(page, "text", TOY))
    page.driver.set_window_size(1600, 1100)
    ui.checks(page, "text")
    page.shoot("drift")
    laboratory.edit()
    config = {"ops": {"submit": {"config": {"targets": TARGETS}}}}
    finish(page, ui.launchpad(page, "build_in_parallel", json.dumps(config)))
    (backfill,) = page.backfills()
    ui.backfill_ended(page, backfill["id"])
    page.open(f"/runs/b/{backfill['id']}")
    page.shows("100% completed")
    page.shoot("backfill")


def finish(page: Page, run: str) -> None:
    status = ui.ended(page, run)
    if status != "SUCCESS":
        sys.exit(f"run {run} ended as {status}; look at it in the UI")


def report(page: Page, target: str) -> None:
    from marin_dagster.experiments import find

    store, recipe = read_environment().store(), find(target)
    record = store.record(recipe)
    if record is None:
        sys.exit(f"{target} is not built; run `marin build {target} --run` first, or --report ''")
    page.open(Path(store.localize(recipe, record), "index.html").as_uri())
    page.wait("//h1")
    page.shoot("report")


if __name__ == "__main__":
    main()
