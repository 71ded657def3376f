import dataclasses
import importlib
import subprocess
import sys
import textwrap

import pytest

from marin_dagster import code
from marin_dagster.plan import plan
from marin_dagster.store import Store

RECIPE = """
    from dataclasses import dataclass
    from pathlib import Path
    from typing import ClassVar

    import numpy

    from lab.constants import LIMIT
    from marin_dagster.kinds import Documents
    from marin_dagster.recipe import Context, Summary


    @dataclass(frozen=True, kw_only=True)
    class Lengths(Documents):
        '''Writes how long the words are.'''

        stage: ClassVar[str] = "raw"

        def build(self, ctx: Context) -> Summary:
            Path(ctx.out, "n.txt").write_text(str(LIMIT))
            return Summary(numbers={"limit": LIMIT})
"""


@pytest.fixture
def lab(tmp_path, monkeypatch):
    """A user's package `lab`; `write(name, text)` changes a module of it and reloads."""
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "lab").mkdir()
    (tmp_path / "lab" / "__init__.py").write_text("")

    def write(name: str, text: str):
        (tmp_path / "lab" / f"{name}.py").write_text(textwrap.dedent(text))
        for module in [m for m in sys.modules if m.partition(".")[0] == "lab"]:
            del sys.modules[module]
        importlib.invalidate_caches()
        for cached in (code._closure, code._parse, code._place, code._versions):
            cached.cache_clear()

    write("constants", "LIMIT = 3\n")
    write("recipes", RECIPE)
    yield write
    for module in [m for m in sys.modules if m.partition(".")[0] == "lab"]:
        del sys.modules[module]


def lengths(version="dev"):
    return importlib.import_module("lab.recipes").Lengths(name="a", version=version)


def test_edited_code_is_named_and_reruns_a_dev_artifact(lab, tmp_path):
    store = Store(str(tmp_path / "s"))
    store.build(lengths())
    lab("constants", "LIMIT = 4\n")
    step = plan(store, [lengths()])["raw/a@dev"]
    assert step.runs
    assert [item.field for item in step.judgement.drifted] == ["lab.constants"]
    assert store.build(lengths()).record.summary.numbers == {"limit": 4}


def test_edited_code_is_announced_when_a_fixed_version_is_reused(lab, tmp_path):
    store = Store(str(tmp_path / "s"))
    store.build(lengths("2026.01.01"))
    lab("constants", "LIMIT = 4\n")
    outcome = store.build(lengths("2026.01.01"))
    assert outcome.reused
    assert [item.field for item in outcome.judgement.drifted] == ["lab.constants"]


def test_comments_docstrings_and_layout_are_not_code(lab):
    before = code.code_digests(lengths())
    lab("constants", '"""Says it."""\n\n# three\nLIMIT   =   3\n')
    assert code.code_digests(lengths()) == before
    assert set(before) == {"lab.recipes", "lab.constants"}


def test_the_libraries_that_the_code_imports_are_recorded(lab):
    assert set(code.library_versions(lengths())) == {"numpy"}


def test_looking_at_code_imports_none_of_it():
    program = (
        "import sys; from marin_dagster import code;"
        "from marin_dagster.experiments import catalog;"
        "recipe = catalog()['evals/quickstart@dev'];"
        "assert len(code.code_digests(recipe)) > 10;"
        "assert 'jax' in code.library_versions(recipe);"
        "assert not {'jax', 'datasets', 'lm_eval'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_relative_imports_in_a_package_are_followed(lab, tmp_path):
    lab("recipes", RECIPE.replace("from lab.constants import LIMIT", "from lab.sub import LIMIT"))
    (tmp_path / "lab" / "sub").mkdir()
    lab("sub/__init__", "from .impl import LIMIT\n")
    lab("sub/impl", "LIMIT = 3\n")
    assert set(code.code_digests(lengths())) == {"lab.recipes", "lab.sub", "lab.sub.impl"}


def test_the_code_of_a_value_in_a_field_counts(lab):
    recipes = importlib.import_module("lab.recipes")

    @dataclasses.dataclass(frozen=True)
    class Rule:
        words: int = 3

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Ruled(recipes.Lengths):
        rule: Rule = Rule()

    Rule.__module__ = "lab.constants"
    assert "lab.constants" in Ruled(name="a", version="dev").modules
