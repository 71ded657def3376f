"""Registers the toy experiment the way a user's package does: by an entry point."""

import os
import sys
import tempfile
from pathlib import Path

import pytest
from jaxtyping import install_import_hook

from marin_dagster import experiments
from marin_dagster.experiments import catalog
from tests.dagster_server import DagsterServer
from tests.scripted import FOLDER, Scripts

ROOT = Path(__file__).resolve().parent.parent


def _install_toys() -> None:
    site = tempfile.mkdtemp(prefix="toy-lab-")
    info = Path(site, "toy_lab-0.0.1.dist-info")
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-lab\nVersion: 0.0.1\n")
    (info / "entry_points.txt").write_text(
        "[marin_dagster.experiments]\n"
        "toys = tests.toys\n"
        "rounds = tests.integration.lab:every_minute\n"
        "live = tests.integration.lab:training\n"
        "scripted = tests.scripted\n"
    )
    sys.path.insert(0, site)
    paths = [site, str(ROOT), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))


# The tests compile many small programs and run each briefly.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(ROOT / ".pytest_cache" / "jax"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.3")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
_install_toys()
CHECKED = ("guard", "hyperball", "loss", "sampling", "step")
# Shapes and types in signatures are checked at every call.
install_import_hook(
    [
        "marin_dagster.models",
        *(
            f"marin_dagster.training.{n}"
            for n in ("guard", "hyperball", "loss", "step", "sampling")
        ),
    ],
    "beartype.beartype",
)


@pytest.fixture
def prefix(tmp_path, monkeypatch) -> str:
    """An empty prefix that everything in this test uses."""
    folder = str(tmp_path / "store")
    monkeypatch.setenv("MARIN_PREFIX", folder)
    return folder


@pytest.fixture
def scripts(tmp_path, monkeypatch) -> Scripts:
    """What the scripted recipes do in this test and in the processes that it starts."""
    (tmp_path / "scripts").mkdir()
    monkeypatch.setenv(FOLDER, str(tmp_path / "scripts"))
    return Scripts(tmp_path / "scripts")


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    """A `dagster dev` that all tests of one process share; `server.scripts` is its `scripts`."""
    folder = tmp_path_factory.mktemp("server")
    (folder / "scripts").mkdir()
    with DagsterServer(folder, **{FOLDER: str(folder / "scripts")}) as found:
        found.scripts = Scripts(folder / "scripts")
        yield found


@pytest.fixture(autouse=True)
def one_catalog():
    """Every test ends with the catalog that the assets of this process were made from."""
    before = catalog()
    yield
    experiments._loaded[:] = [before]


@pytest.fixture
def edit():
    """Changes fields of a recipe of the catalog, as an edit and a reload would, for one test."""
    undo = []

    def change(address: str, **fields) -> None:
        recipe = catalog()[address]
        undo.append((recipe, {name: recipe.__dict__[name] for name in fields}))
        _set(recipe, fields)

    yield change
    for recipe, fields in reversed(undo):
        _set(recipe, fields)


def _set(recipe, fields) -> None:
    recipe.__dict__.update(fields)
    for derived in ("payload", "fingerprint"):
        recipe.__dict__.pop(derived, None)
