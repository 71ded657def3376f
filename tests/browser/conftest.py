"""A server, a browser, and the package of a user whose experiment can be edited."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.browser.server import ROOT, dagster_dev, free_port
from tests.browser.ui import Page, browser

EXPERIMENT = '''\
"""The toy road under a name of its own, and a training that takes SECONDS."""

from tests.toys import Joined, Slow, Upper, Words

VERSIONS = ("dev", "2026.01.01", "2026.02.03")


def experiment(version):
    base = {{"name": "seen", "version": version}}
    words = Words(**base, words=("one", "two"))
    upper = Upper(**base, documents=words, suffix="{suffix}")
    joined = Joined(**base, parts=(upper, words))
    return joined, Slow(**base, documents=joined, seconds={seconds})
'''


@pytest.fixture(scope="module")
def laboratory(tmp_path_factory) -> Path:
    """A folder with a Dagster instance, a store and an installed package `seen`."""
    for program in ("chromium", "chromedriver"):
        assert shutil.which(program), (
            f"{program} is not installed; the browser test needs it: "
            "apt-get install chromium chromium-driver"
        )
    folder = tmp_path_factory.mktemp("laboratory")
    (folder / "home").mkdir()
    settings = (ROOT / "dagster.yaml").read_text()
    (folder / "home" / "dagster.yaml").write_text(
        settings.replace("base_dir: ", f"base_dir: {folder}/home/")
    )
    info = folder / "site" / "seen_lab-0.0.1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: seen-lab\nVersion: 0.0.1\n")
    (info / "entry_points.txt").write_text("[marin_dagster.experiments]\nseen = seen_lab\n")
    return folder


@pytest.fixture(scope="module")
def edit(laboratory) -> Callable[..., None]:
    """Writes the experiment's file, as an editor would; runs that start later read it."""

    def write(suffix: str = "", seconds: float = 0.2) -> None:
        text = EXPERIMENT.format(suffix=suffix, seconds=seconds)
        (laboratory / "site" / "seen_lab.py").write_text(text)

    write()
    return write


@pytest.fixture(scope="module")
def page(laboratory, edit) -> Iterator[Page]:
    environment = os.environ | {
        "DAGSTER_HOME": str(laboratory / "home"),
        "MARIN_PREFIX": str(laboratory / "store"),
        "PYTHONPATH": os.pathsep.join([str(laboratory / "site"), os.environ["PYTHONPATH"]]),
        "PYTHONDONTWRITEBYTECODE": "1",  # an edit within a second would be missed
    }
    log = laboratory / "dagster.log"
    with dagster_dev(free_port(), environment, log) as url, browser() as driver:
        yield Page(driver, url, laboratory)
