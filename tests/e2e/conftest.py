"""One run of the quickstart, from the command line, that all end-to-end tests look at."""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from marin_dagster.experiments import catalog
from marin_dagster.record import Record
from marin_dagster.store import Store

ROOT = Path(__file__).resolve().parent.parent.parent


@dataclass(frozen=True)
class Laboratory:
    """A prefix and a Dagster instance of their own."""

    prefix: str
    folder: Path  # commands run here; it holds dagster.yaml and .dagster/

    def run(self, *words: str) -> subprocess.CompletedProcess:
        """Runs a command of the virtual environment; returns what it printed, both streams."""
        environment = {**os.environ, "MARIN_PREFIX": self.prefix}
        environment.pop("XLA_FLAGS", None)
        program = Path(sys.executable).with_name(words[0])
        return subprocess.run(
            [str(program), *words[1:]],
            cwd=self.folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )

    def record(self, address: str) -> Record:
        record = Store(self.prefix).record(catalog()[address])
        assert record is not None, address
        return record

    def data(self, address: str) -> Path:
        """The folder with an artifact's files."""
        return Path(Store(self.prefix).data_url(catalog()[address], self.record(address)))


@pytest.fixture(scope="session")
def laboratory(tmp_path_factory) -> Laboratory:
    folder = tmp_path_factory.mktemp("laboratory")
    shutil.copy(ROOT / "dagster.yaml", folder)
    return Laboratory(prefix=str(folder / "store"), folder=folder)


@pytest.fixture(scope="session")
def quickstart(laboratory) -> Laboratory:
    done = laboratory.run("marin", "build", "reports/quickstart@dev", "--run")
    assert done.returncode == 0, done.stdout
    return laboratory
