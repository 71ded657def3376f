"""Turns a store and the Dagster UI into the pictures of the documentation.

Run it from the repository root, after the quickstart has been built:

    python docs/screenshots.py

It starts `dagster dev` there, drives Debian's chromium through selenium (`pip install selenium`,
`apt-get install chromium chromium-driver`), and writes docs/pictures/*.png. One picture shows a
run that it launches from the UI: the partition `--launch`, an artifact that is cheap to build.
"""

import argparse
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

from selenium import webdriver
from selenium.common.exceptions import TimeoutException
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webdriver import WebDriver
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support import expected_conditions as expected
from selenium.webdriver.support.ui import WebDriverWait

ROOT = Path(__file__).resolve().parent.parent
FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--hide-scrollbars", "--window-size=1600,1000"),
)
START_SECONDS = 180  # dagster dev, with a slow first import
PAGE_SECONDS = 60
RUN_SECONDS = 300
RUNS_QUERY = """
{ runsOrError(limit: 20) { ... on Runs {
    results { runId status assetSelection { path } }
} } }
"""
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # loopback needs no proxy
GROUPS = ("data", "training", "evaluation", "science", "targets")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--key", default="quickstart@dev", help="partition to show")
    parser.add_argument("--stage", default="checkpoints", help="its asset")
    parser.add_argument("--checks", default="raw", help="asset whose checks are shown")
    parser.add_argument("--launch", default="raw/story-tasks@dev", help="partition of build to run")
    parser.add_argument("--report", default="reports/quickstart@dev", help="report; '' for none")
    parser.add_argument("--port", type=int, default=3217)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "pictures")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with dagster_dev(options.port) as url, browser() as driver:
        camera = Camera(driver, url, options.out)
        lineage(camera)
        partition(camera, options.stage, options.key)
        launch(camera, options.launch)
        checks(camera, options.checks)
        if options.report:
            report(camera, options.report)


class Camera:
    """A browser, the server it looks at, and the folder of the pictures."""

    def __init__(self, driver: WebDriver, url: str, out: Path):
        self.driver = driver
        self._url = url
        self._out = out

    def open(self, path: str) -> None:
        self.driver.get(path if "://" in path else self._url + path)

    def wait(self, xpath: str, seconds: float = PAGE_SECONDS) -> WebElement:
        """The element, once it is shown; a failure leaves a picture of the page."""
        where = (By.XPATH, xpath)
        try:
            return WebDriverWait(self.driver, seconds, poll_frequency=0.2).until(
                expected.visibility_of_element_located(where)
            )
        except TimeoutException:
            self.driver.save_screenshot(str(self._out / "failed.png"))
            print(f"not shown within {seconds} s: {xpath} at {self.driver.current_url}")
            raise

    def click(self, xpath: str) -> None:
        """Clicks by script: an animation may cover the element for a moment."""
        self.driver.execute_script("arguments[0].click()", self.wait(xpath))

    def runs(self) -> list[dict[str, Any]]:
        """The latest runs, newest first, as the server knows them."""
        body = json.dumps({"query": RUNS_QUERY}).encode()
        head = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{self._url}/graphql", body, head)
        with DIRECT.open(request, timeout=30) as answer:
            return json.load(answer)["data"]["runsOrError"]["results"]

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


def lineage(camera: Camera) -> None:
    """The whole graph, with its groups expanded and the navigation hidden."""
    groups = ",".join(f"global@global:{group}" for group in GROUPS)
    camera.driver.set_window_size(2200, 1400)
    camera.open("/asset-groups")
    camera.click("//*[text()='Hide navigation']")
    camera.open(f"/asset-groups?expanded={quote(groups, safe='')}")
    camera.wait("//*[name()='svg']//*[text()='checkpoints']")
    camera.shoot("lineage")
    camera.driver.set_window_size(1600, 1100)


def partition(camera: Camera, stage: str, key: str) -> None:
    """One partition's page: numbers, plots, links to the inputs."""
    camera.driver.set_window_size(1600, 1600)
    camera.open(f"/assets/{stage}?view=partitions&partition={quote(key, safe='')}")
    camera.wait("//*[text()='fingerprint']")
    camera.shoot("partition")
    camera.driver.set_window_size(1600, 1100)


def launch(camera: Camera, target: str) -> None:
    """Materializes a partition of `build` by hand; its run, once it has succeeded."""
    known = {run["runId"] for run in camera.runs()}
    camera.open("/assets/build?view=partitions")
    camera.click("//button[contains(., 'Materialize')]")
    camera.wait("//*[contains(text(), 'Select a partition')]").click()
    camera.wait("//input[@placeholder='Filter partitions']").send_keys(target)
    camera.click(f"//span[text()='{target}']")
    webdriver.ActionChains(camera.driver).send_keys(Keys.ESCAPE).perform()
    title = camera.wait("//*[contains(text(), 'Launch runs to materialize')]")
    webdriver.ActionChains(camera.driver).move_to_element(title).perform()
    camera.shoot("materialize")
    camera.click("//button[contains(., 'Launch 1 run')]")
    camera.open(f"/runs/{_finished_run(camera, known)}")
    camera.wait("//*[text()='Success']")
    camera.shoot("run")


def _finished_run(camera: Camera, known: set[str]) -> str:
    """The id of the run of `build` that was launched after the `known` ones."""
    deadline = time.monotonic() + RUN_SECONDS
    while time.monotonic() < deadline:
        new = [
            run
            for run in camera.runs()
            if run["runId"] not in known and {"path": ["build"]} in run["assetSelection"]
        ]
        if new and new[-1]["status"] == "SUCCESS":
            return new[-1]["runId"]
        if new and new[-1]["status"] in ("FAILURE", "CANCELED"):
            sys.exit(f"run {new[-1]['runId']} ended as {new[-1]['status']}; look at it in the UI")
        time.sleep(1)
    sys.exit(f"the run launched from the UI did not end within {RUN_SECONDS} s")


def checks(camera: Camera, stage: str) -> None:
    """The checks of an asset, with the one that tells drift in front."""
    camera.open(f"/assets/{stage}?view=checks")
    camera.click("//*[text()='up_to_date']")
    camera.wait("//*[contains(text(), 'those that the artifact was made with')]")
    camera.shoot("checks")


def report(camera: Camera, target: str) -> None:
    from marin_dagster.environment import read_environment
    from marin_dagster.experiments import find

    store, recipe = read_environment().store(), find(target)
    record = store.record(recipe)
    if record is None:
        sys.exit(f"{target} is not built; run `marin build {target} --run` first, or --report ''")
    camera.open(Path(store.localize(recipe, record), "index.html").as_uri())
    camera.wait("//h1")
    camera.shoot("report")


@contextlib.contextmanager
def browser() -> Iterator[WebDriver]:
    options = webdriver.ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    for flag in FLAGS:
        options.add_argument(flag)
    driver = webdriver.Chrome(options=options, service=Service("/usr/bin/chromedriver"))
    try:
        yield driver
    finally:
        driver.quit()


@contextlib.contextmanager
def dagster_dev(port: int) -> Iterator[str]:
    """Runs `dagster dev` in the repository root; yields its address, once it answers."""
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", port)) == 0:
            sys.exit(f"port {port} is in use; choose another with --port")
    server = subprocess.Popen(
        [sys.executable, "-m", "dagster", "dev", "-p", str(port)],
        cwd=ROOT,
        env={**os.environ, "NO_PROXY": "127.0.0.1,localhost"},
        start_new_session=True,
    )
    url = f"http://127.0.0.1:{port}"
    try:
        _await_answer(f"{url}/server_info", server)
        yield url
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGINT)
        try:
            server.wait(timeout=30)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()


def _await_answer(url: str, server: subprocess.Popen) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if server.poll() is not None:
            sys.exit(f"dagster dev ended with exit code {server.returncode}")
        with contextlib.suppress(urllib.error.URLError, OSError):
            DIRECT.open(url, timeout=5).close()
            return
        time.sleep(0.5)
    sys.exit(f"dagster dev did not answer at {url} within {START_SECONDS} s")


if __name__ == "__main__":
    main()
