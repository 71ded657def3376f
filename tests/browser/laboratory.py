"""A user's folder: a Dagster instance, a store, and a package with an experiment to edit."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.browser.ui import Page, browser
from tests.dagster_server import ROOT, DagsterServer

EXPERIMENT = '''\
"""Words, capitals, both joined, and a training that takes {seconds} seconds."""

from tests.toys import Joined, Slow, Upper, Words

VERSIONS = ("dev", "2026.01.01", "2026.02.03")


def experiment(version):
    base = {{"name": "seen", "version": version}}
    words = Words(**base, words=("one", "two"))
    upper = Upper(**base, documents=words, suffix="{suffix}")
    joined = Joined(**base, parts=(upper, words))
    return joined, Slow(**base, documents=joined, seconds={seconds})
'''


class Laboratory:
    """Makes the folder; `edit` changes the experiment's file, as an editor would."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._site = folder / "site"
        info = self._site / "seen_lab-0.0.1.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: seen-lab\nVersion: 0.0.1\n")
        (info / "entry_points.txt").write_text("[marin_dagster.experiments]\nseen = seen_lab\n")
        self.edit()

    def edit(self, suffix: str = "", seconds: float = 0.2) -> None:
        """Writes the experiment's file; runs that start later read it."""
        text = EXPERIMENT.format(suffix=suffix, seconds=seconds)
        (self._site / "seen_lab.py").write_text(text)

    @contextmanager
    def page(self, out: Path) -> Iterator[Page]:
        """A browser that looks at this laboratory's `dagster dev`; pictures go to `out`."""
        path = [str(self._site), str(ROOT), os.environ.get("PYTHONPATH", "")]
        environment = {
            "PYTHONPATH": os.pathsep.join(filter(None, path)),
            "PYTHONDONTWRITEBYTECODE": "1",  # two edits within a second would be one
        }
        with DagsterServer(self.folder, **environment) as server, browser() as driver:
            yield Page(driver, server, out)


def require_browser() -> None:
    for program in ("chromium", "chromedriver"):
        if shutil.which(program) is None:
            raise FileNotFoundError(
                f"{program} is not installed, and the browser test needs it; on Debian: "
                "apt-get install chromium chromium-driver"
            )
