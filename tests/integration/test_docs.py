"""The documentation against the code: commands run, links lead somewhere, tables are complete."""

import ast
import importlib
import inspect
import os
import pkgutil
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import marin_dagster
from marin_dagster.cli import main
from marin_dagster.data.documents import read_documents
from marin_dagster.data.examples import ExampleDocuments
from marin_dagster.recipe import Recipe
from marin_dagster.store import Store

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
LABS = ("docs/how-to/add-an-experiment.md", "docs/how-to/crawl-a-real-site.md")
NOT_RUN = re.compile(r"no-test \(.{8,}\)")
FENCE = re.compile(r"^```([a-z]*) ?(.*?)\n(.*?)^```$", re.M | re.S)
SECONDS = 120


@dataclass(frozen=True, kw_only=True)
class Block:
    """A fenced block: its language, what stands behind it, and its text."""

    page: str
    line: int
    language: str
    info: str
    text: str

    @property
    def where(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(page: Path) -> list[Block]:
    content = page.read_text()
    return [
        Block(
            page=name(page),
            line=content[: found.start()].count("\n") + 1,
            language=found[1],
            info=found[2],
            text=found[3],
        )
        for found in FENCE.finditer(content)
    ]


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def prose(page: Path) -> str:
    """The page without its fenced blocks."""
    return FENCE.sub("", page.read_text())


ALL = [block for page in PAGES for block in blocks(page)]
RUN = [block for block in ALL if block.language == "bash" and not block.info]
FILES = [block for block in ALL if block.info.startswith("file=")]


@pytest.fixture(scope="module")
def laboratory(tmp_path_factory) -> dict[str, str]:
    """An environment with a store, a Dagster instance and the packages of the how-to guides."""
    folder = tmp_path_factory.mktemp("laboratory")
    home, scratch = folder / "home", folder / "scratch"
    home.mkdir()
    scratch.mkdir()
    settings = (ROOT / "dagster.yaml").read_text()
    (home / "dagster.yaml").write_text(settings.replace("base_dir: ", f"base_dir: {home}/"))
    sites = [str(install(page, folder / Path(page).stem)) for page in LABS]
    environment = {key: value for key, value in os.environ.items() if key != "MARIN_DRIFT"}
    return environment | {
        "MARIN_PREFIX": str(folder / "store"),
        "DAGSTER_HOME": str(home),
        "TMPDIR": str(scratch),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONPATH": os.pathsep.join([*sites, os.environ["PYTHONPATH"]]),
    }


def install(page: str, site: Path) -> Path:
    """Does what pip does with the package that a page describes: modules and entry points."""
    site.mkdir()
    for block in FILES:
        if block.page == page:
            (site / block.info.removeprefix("file=")).write_text(block.text)
    project = tomllib.loads((site / "pyproject.toml").read_text())["project"]
    info = site / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    points = [
        f"[{group}]\n" + "".join(f"{key} = {value}\n" for key, value in entries.items())
        for group, entries in project["entry-points"].items()
    ]
    (info / "entry_points.txt").write_text("".join(points))
    return site


@pytest.mark.parametrize("block", RUN, ids=lambda block: block.where)
def test_a_block_of_commands_runs(block, laboratory):
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", block.text],
        cwd=ROOT,
        env=laboratory,
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, f"{block.where}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"


def test_a_block_of_commands_that_is_not_run_says_why():
    silent = [
        block.where
        for block in ALL
        if block.language in ("bash", "sh", "console", "shell")
        and not (block.language == "bash" and (not block.info or NOT_RUN.fullmatch(block.info)))
    ]
    assert silent == []


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_and_pictures_lead_to_files(page):
    missing = [link for link in links(page) if not (page.parent / link).exists()]
    assert missing == []


def links(page: Path) -> Iterator[str]:
    """Relative targets, without anchors."""
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        path = target.partition("#")[0]
        if path and "://" not in target:
            yield path


def test_every_page_is_reached_from_the_front_door():
    reached, pending = set(), [ROOT / "README.md"]
    while pending:
        page = pending.pop()
        if page in reached or page.suffix != ".md" or not page.exists():
            continue
        reached.add(page)
        pending += [(page.parent / link).resolve() for link in links(page)]
    assert sorted(set(PAGES) - reached) == []


def test_python_blocks_are_python():
    for block in ALL:
        if block.language == "python":
            ast.parse(block.text, block.where)


def test_the_stage_of_the_guide_works(tmp_path, monkeypatch):
    for block in FILES:
        if block.page == "docs/how-to/add-a-stage.md":
            file = block.info.removeprefix("file=")
            (tmp_path / file).write_text(block.text)
    monkeypatch.syspath_prepend(str(tmp_path))
    shorten = importlib.import_module("shorten").Shorten
    stories = ExampleDocuments(name="few", version="dev", label="story", seed=1, num_documents=5)
    short = shorten(name="few", version="dev", documents=stories, max_characters=40)
    store = Store(str(tmp_path / "store"))
    store.build(stories)
    record = store.build(short).record
    texts = [row["text"] for row in read_documents(store.localize(short, record))]
    assert [len(text) for text in texts] == [40] * 5
    asset = importlib.import_module("shortened").shortened
    assert asset.key.path == ["shortened"]


def test_the_tables_of_recipes_and_kinds_are_complete():
    for module in pkgutil.walk_packages(marin_dagster.__path__, "marin_dagster."):
        importlib.import_module(module.name)
    ours = {cls for cls in subclasses(Recipe) if cls.__module__.startswith("marin_dagster.")}
    made = {cls for cls in ours if not inspect.isabstract(cls)}
    wanted = {(cls.stage, cls.__name__, kind_of(cls)) for cls in made}
    kinds = {cls.__name__ for cls in ours - made}
    page = ROOT / "docs" / "reference" / "recipes.md"
    recipes, kind_rows = section(page, "Recipes"), section(page, "Kinds")
    assert {tuple(row[:3]) for row in recipes} == wanted
    assert len(recipes) == len(wanted)
    assert {row[0] for row in kind_rows} == kinds
    assert {row[0] for row in section(page.with_name("file-formats.md"), "Kinds")} == kinds


def subclasses(cls: type) -> Iterator[type]:
    for child in cls.__subclasses__():
        yield child
        yield from subclasses(child)


def kind_of(cls: type) -> str:
    return next(
        base.__name__ for base in cls.__mro__[1:] if base.__module__ == "marin_dagster.kinds"
    )


def section(page: Path, title: str) -> list[list[str]]:
    """The rows of the table under a heading, without back-ticks."""
    text = page.read_text().partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    lines = [line for line in text.splitlines() if line.startswith("|")][2:]
    return [[cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in lines]


def test_the_reference_of_the_command_line_is_complete():
    text = (ROOT / "docs" / "reference" / "command-line.md").read_text()
    rows = {
        found[1]: set(re.findall(r"--[a-z]+", found[2]))
        for found in re.finditer(r"^\| `marin (\w+)[^|]*\| ([^|]*)\|", text, re.M)
    }
    options = {
        command: {flag for item in found.params for flag in item.opts if flag.startswith("--")}
        for command, found in main.commands.items()
    }
    assert rows == options


def test_the_reference_of_the_environment_is_complete():
    source = (ROOT / "marin_dagster" / "environment.py").read_text()
    read = set(re.findall(r'"((?:MARIN|HF|WANDB)_[A-Z_]+)"', source))
    text = (ROOT / "docs" / "reference" / "environment.md").read_text()
    assert set(re.findall(r"^\| `([A-Z_]+)`", text, re.M)) == read


def test_the_reference_of_metrics_tells_every_event():
    page = (ROOT / "docs" / "reference" / "metrics.md").read_text()
    told = set(re.findall(r"`(\w+)`", " ".join(re.findall(r"(?m)^\| (`.*?) \|", page))))
    source = "".join(
        path.read_text() for path in (ROOT / "marin_dagster" / "training").glob("*.py")
    )
    calls = r"(?:\.event\(\s*[\w.]+,\s*|\bself\._?(?:work\.)?(?:said|say)\(\s*)\"(\w+)\""
    written = set(re.findall(calls, source))
    assert {"attempt", "skip", "preemption", "norm_drift"} <= written <= told


def test_make_targets_exist():
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z][a-z-]*):", makefile, re.M))
    code = "\n".join(
        [block.text for block in ALL if block.language == "bash"]
        + [span for page in PAGES for span in re.findall(r"`([^`\n]+)`", prose(page))]
    )
    named = set(re.findall(r"^make ([a-z][a-z-]*)", code, re.M))
    assert {"quickstart", "check"} <= named <= targets
