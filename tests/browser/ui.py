"""Turns intentions (look at the lineage, build a target) into clicks in Dagster's UI."""

import contextlib
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from selenium import webdriver
from selenium.common.exceptions import (
    ElementClickInterceptedException,
    StaleElementReferenceException,
    TimeoutException,
)
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webdriver import WebDriver
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support import expected_conditions as expected
from selenium.webdriver.support.ui import WebDriverWait

from tests.dagster_server import DagsterServer, wait_for

FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--hide-scrollbars", "--window-size=1600,1100", "--disable-dev-shm-usage"),
)
PAGE_SECONDS = 60
RUN_SECONDS = 300
ENDED = ("SUCCESS", "FAILURE", "CANCELED")
GROUPS = ("data", "training", "evaluation", "science", "targets")
RUNS = """
{ runsOrError(limit: 50) { ... on Runs {
    results { runId status assetSelection { path } tags { key value } }
} } }
"""
SERIES = """
query ($key: AssetKeyInput!, $partitions: [String!]) {
  assetOrError(assetKey: $key) { ... on Asset {
    assetObservations(partitions: $partitions) {
      runId metadataEntries { label ... on FloatMetadataEntry { floatValue } }
    }
  } }
}
"""
BACKFILLS = """
{ partitionBackfillsOrError(limit: 5) { ... on PartitionBackfills {
    results { id status title partitionNames }
} } }
"""
T = TypeVar("T")


class Page:
    """A browser, the server that it looks at, and the folder of its pictures."""

    def __init__(self, driver: WebDriver, server: DagsterServer, out: Path):
        self.driver = driver
        self.url = server.url
        self.server = server
        self._out = out

    def open(self, path: str) -> None:
        self.driver.get(path if "://" in path else self.url + path)

    def wait(self, xpath: str, seconds: float = PAGE_SECONDS) -> WebElement:
        """The element, once it is shown; a failure leaves a picture of the page."""
        try:
            return self._await(xpath, seconds)
        except TimeoutException as error:
            self.driver.save_screenshot(str(self._out / "failed.png"))
            raise TimeoutException(
                f"not shown within {seconds} s: {xpath} at {self.driver.current_url}; "
                f"see {self._out / 'failed.png'}"
            ) from error

    def _await(self, xpath: str, seconds: float) -> WebElement:
        return WebDriverWait(self.driver, seconds, poll_frequency=0.2).until(
            expected.visibility_of_element_located((By.XPATH, xpath))
        )

    def shows(self, text: str, seconds: float = PAGE_SECONDS) -> WebElement:
        """The innermost element with this text in it."""
        return self.wait(f"//*[text()[contains(., {text!r})]]", seconds)

    def click(self, xpath: str) -> None:
        """Clicks by script: an animation may cover the element for a moment."""
        self._act(
            xpath, lambda element: self.driver.execute_script("arguments[0].click()", element)
        )

    def click_for(self, xpath: str, then: str) -> None:
        """Clicks until something is shown: a page that still loads may lose a click."""
        deadline = time.monotonic() + PAGE_SECONDS
        while True:
            self.click(xpath)
            with contextlib.suppress(TimeoutException):
                self._await(then, 5)
                return
            if time.monotonic() > deadline:
                self.wait(then, 1)

    def press(self, xpath: str) -> None:
        """Clicks with the mouse, for what opens at a button's going down."""
        self._act(xpath, lambda element: element.click())

    def type(self, xpath: str, text: str) -> None:
        self._act(xpath, lambda element: element.send_keys(text))

    def _act(self, xpath: str, action: Callable[[WebElement], object]) -> None:
        """Acts on an element once it is shown, again if the page was drawn anew meanwhile."""
        deadline = time.monotonic() + PAGE_SECONDS
        while True:
            try:
                action(self.wait(xpath))
                return
            except (StaleElementReferenceException, ElementClickInterceptedException):
                if time.monotonic() > deadline:
                    raise

    def settle(self) -> None:
        """Waits until the page looks the same twice: drawings and animations have ended."""
        before = b""
        deadline = time.monotonic() + PAGE_SECONDS
        while time.monotonic() < deadline:
            now = self.driver.get_screenshot_as_png()
            if now == before:
                return
            before = now
            time.sleep(0.7)

    def shoot(self, name: str) -> None:
        self.settle()
        path = self._out / f"{name}.png"
        self.driver.save_screenshot(str(path))
        print(path)

    def runs(self) -> list[dict[str, Any]]:
        """The latest runs, newest first, with their tags as a mapping."""
        rows = self.server.ask(RUNS)["runsOrError"]["results"]
        return [row | {"tags": {tag["key"]: tag["value"] for tag in row["tags"]}} for row in rows]

    def series(self, stage: str, key: str, label: str) -> list[float]:
        """The values of one number of a partition's observations, oldest first."""
        found = self.server.ask(SERIES, key={"path": [stage]}, partitions=[key])["assetOrError"]
        return [
            entry["floatValue"]
            for row in reversed(found["assetObservations"])
            for entry in row["metadataEntries"]
            if entry["label"] == label
        ]

    def backfills(self) -> list[dict[str, Any]]:
        return self.server.ask(BACKFILLS)["partitionBackfillsOrError"]["results"]


@contextlib.contextmanager
def browser() -> Iterator[WebDriver]:
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for flag in FLAGS:
        options.add_argument(flag)
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    try:
        yield driver
    finally:
        driver.quit()


def lineage(page: Page) -> None:
    """The whole graph, with its groups expanded and the navigation hidden."""
    groups = ",".join(f"global@global:{group}" for group in GROUPS)
    page.open("/asset-groups")
    page.click("//*[text()='Hide navigation']")
    page.open(f"/asset-groups?expanded={quote(groups, safe='')}")
    page.wait("//*[name()='svg']//*[text()='checkpoints']")


def partition(page: Page, stage: str, key: str) -> None:
    """One partition's page, once its metadata is there."""
    page.open(f"/assets/{stage}?view=partitions&partition={quote(key, safe='')}")
    page.wait("//*[text()='fingerprint']")


def materialize(page: Page, stage: str, key: str, look: Callable[[], None] | None = None) -> str:
    """Materializes one partition by hand; returns the id of the run that it launches.

    `look` is called when everything is chosen and nothing is launched.
    """
    known = {run["runId"] for run in page.runs()}
    page.open(f"/assets/{stage}?view=partitions")
    choose, warning = "//*[contains(text(), 'Select a partition')]", "//*[text()='Are you sure?']"
    page.click_for("//button[contains(., 'Materialize')]", f"{choose} | {warning}")
    if page.driver.find_elements(By.XPATH, warning):  # an asset upstream was never materialized
        page.click_for("//button[contains(., 'Confirm')]", choose)
    page.press(choose)
    page.type("//input[@placeholder='Filter partitions']", key)
    page.click(f"//span[text()='{key}']")
    webdriver.ActionChains(page.driver).send_keys(Keys.ESCAPE).perform()
    title = page.wait("//*[contains(text(), 'Launch runs to materialize')]")
    webdriver.ActionChains(page.driver).move_to_element(title).perform()
    if look:
        look()
    page.click("//button[contains(., 'Launch 1 run')]")
    return wait_for(lambda: _new_run(page, stage, known), RUN_SECONDS, f"a run of {stage}")


def ended(page: Page, run_id: str, seconds: float = RUN_SECONDS) -> str:
    """The status in which a run ends."""

    def status() -> str:
        found = {run["runId"]: run["status"] for run in page.runs()}[run_id]
        return found if found in ENDED else ""

    return wait_for(status, seconds, f"the end of run {run_id}")


def live_plots(page: Page, stage: str) -> None:
    """The plots of an asset by time, in which the running build is the newest part."""
    page.open(f"/assets/{stage}?view=overview")
    page.click_for("//button[contains(., 'Plots')]", "//button[contains(., 'Events')]")
    loss = "//*[text()='train/loss']"
    page.click_for("//button[contains(., 'Events')]", loss)
    page.driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", page.wait(loss))


def checks(page: Page, stage: str) -> None:
    """The checks of an asset, with the one that tells drift in front."""
    page.open(f"/assets/{stage}?view=checks")
    page.click("//*[text()='up_to_date']")
    page.shows("those that the artifact was made with")


def terminate(page: Page, run_id: str) -> None:
    """Cancels a run on its page."""
    page.open(f"/runs/{run_id}")
    confirm = "//button[contains(., 'Terminate 1 run')]"
    page.click_for("//button[contains(., 'Terminate')]", confirm)
    page.click(confirm)


def launchpad(page: Page, job: str, config: str) -> str:
    """Launches a job with a run configuration typed in; returns the id of the run."""
    known = {run["runId"] for run in page.runs()}
    page.open(f"/locations/marin/jobs/{job}/playground")
    page.wait("//*[contains(@class, 'CodeMirror')]")
    page.driver.execute_script(
        "document.querySelector('.CodeMirror').CodeMirror.setValue(arguments[0])", config
    )
    page.click("//button[not(@disabled)][contains(., 'Launch Run')]")
    return wait_for(lambda: _new_run(page, None, known), RUN_SECONDS, f"a run of {job}")


def backfill_ended(page: Page, backfill: str, seconds: float = RUN_SECONDS) -> str:
    """The status in which a backfill ends."""

    def status() -> str:
        found = {row["id"]: row["status"] for row in page.backfills()}[backfill]
        return found if found.startswith(("COMPLETED", "FAILED", "CANCELED")) else ""

    return wait_for(status, seconds, f"the end of backfill {backfill}")


def _new_run(page: Page, stage: str | None, known: set[str]) -> str:
    """The id of the run that was launched after the `known` ones."""
    for run in reversed(page.runs()):
        selection = run["assetSelection"] or []
        if run["runId"] not in known and (stage is None or {"path": [stage]} in selection):
            return run["runId"]
    return ""
