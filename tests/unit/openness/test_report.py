"""The report is one file that shows every artifact behind its targets and escapes what they say."""

import re
from dataclasses import dataclass, replace
from html.parser import HTMLParser
from pathlib import Path
from typing import ClassVar

import pytest

from marin_dagster.kinds import Documents
from marin_dagster.openness.lineage import depths, lineage_svg
from marin_dagster.openness.report import ExperimentReport
from marin_dagster.recipe import Context, Counts, Recipe, StageError, Summary, walk
from marin_dagster.store import Store
from tests.toys import Joined, road

HOSTILE = "<script>alert(1)</script>"


@dataclass(frozen=True, kw_only=True)
class Told(Documents):
    """Says something of every kind in its summary."""

    stage: ClassVar[str] = "filtered"
    documents: Documents
    text: str = HOSTILE

    def build(self, ctx: Context) -> Summary:
        Path(ctx.out, "words.txt").write_text("x")
        return Summary(
            numbers={"loss": 1.25, "note": self.text},
            counts=Counts(
                unit="documents", read=10, kept=7, dropped={"short": 2}, errors={"cut": 1}
            ),
            tables={"Scores": [{"task": self.text, "value": 0.5}, {"other": None}]},
            plots={"Loss": f"<svg xmlns='http://www.w3.org/2000/svg'>{self.text}</svg>"},
            notes={"Sample": self.text},
        )


def page_of(root: Path, target: Recipe, **fields) -> str:
    store = Store(str(root))
    report = ExperimentReport(name="r", version="dev", targets=(target,), **fields)
    for recipe in walk([report]).values():
        store.build(recipe)
    folder = store.read_input(report)[1]
    return Path(folder, "index.html").read_text()


class Tags(HTMLParser):
    """Collects tags and attributes; complains of tags that are closed out of order."""

    VOID = ("meta", "img", "br", "path", "rect")

    def __init__(self):
        super().__init__()
        self.open, self.ids, self.links = [], set(), set()

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        self.ids.add(values.get("id"))
        self.links.add(values.get("href") or values.get("src") or "")
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_startendtag(self, tag, attrs):
        pass


def test_every_artifact_upstream_is_on_the_page_and_every_link_leads_somewhere(tmp_path):
    target = road()
    page = page_of(tmp_path, target)
    tags = Tags()
    tags.feed(page)
    assert tags.open == []
    assert set(walk([target])) <= tags.ids
    assert {link[1:] for link in tags.links if link.startswith("#")} <= tags.ids


def test_the_page_needs_nothing_from_elsewhere(tmp_path):
    told = Told(name="t", version="dev", documents=road())
    tags = Tags()
    tags.feed(page_of(tmp_path, told))
    assert {link[:5] for link in tags.links if link and link[0] != "#"} == {"data:"}


def test_what_artifacts_say_cannot_become_markup(tmp_path):
    told = Told(name="t", version="dev", documents=road())
    page = page_of(tmp_path, told, title=HOSTILE, description=HOSTILE)
    assert "<script" not in page
    assert page.count("&lt;script&gt;") >= 5


def test_counts_are_told_by_reason(tmp_path):
    page = page_of(tmp_path, Told(name="t", version="dev", documents=road()))
    row = re.search(r"<tr><td>filtered/t@dev</td>.*?</tr>", page)
    assert row is not None
    assert "short 2, error: cut 1" in row.group()
    assert '<td class="number">70</td>' in row.group()


def test_development_versions_are_marked_and_fixed_ones_are_not(tmp_path):
    told = Told(name="t", version="dev", documents=road())
    changing = "Development versions, which can change"
    assert changing in page_of(tmp_path / "dev", told)
    assert changing not in page_of(tmp_path / "fixed", road("2026.01.01"))


def test_a_failed_attempt_is_told(tmp_path):
    broken = road(misbehave="raise")
    assert isinstance(broken, Joined)
    store = Store(str(tmp_path))
    words, upper, _ = walk([broken]).values()
    store.build(words)
    with pytest.raises(StageError, match="as asked"):
        store.build(upper)
    page = page_of(tmp_path, replace(broken, parts=road().inputs))
    assert "1 failed attempts" in page
    assert "diverged" in page


def test_depth_is_the_longest_way_from_a_source():
    inputs = {"a/x": (), "b/x": ("a/x",), "c/x": ("a/x", "b/x")}
    assert depths(inputs) == {"a/x": 0, "b/x": 1, "c/x": 2}
    svg = lineage_svg(inputs, ["c/x"])
    assert svg.count("<path") == 3
    assert svg.count('class="target"') == 1


def test_boxes_do_not_overlap():
    inputs = {f"raw/{i}": () for i in range(4)}
    inputs |= {"text/a": ("raw/3",), "text/b": ("raw/3",), "text/c": ("raw/0", "raw/3")}
    corners = re.findall(r'<rect[^>]* x="(\d+)" y="(\d+)"', lineage_svg(inputs, []))
    columns: dict[str, list[int]] = {}
    for x, y in corners:
        columns.setdefault(x, []).append(int(y))
    for ys in columns.values():
        assert all(b - a >= 46 for a, b in zip(sorted(ys), sorted(ys)[1:], strict=False))


def test_a_report_on_nothing_is_refused():
    with pytest.raises(ValueError, match=r"targets=\(\) of reports/r@dev is empty"):
        ExperimentReport(name="r", version="dev", targets=())


def test_a_report_reads_the_records_behind_its_targets_too(tmp_path):
    store = Store(str(tmp_path))
    report = ExperimentReport(name="toy", version="dev", targets=(road(),))
    for recipe in walk([report]).values():
        store.build(recipe)
    assert store.record(report).summary.numbers["artifacts"] == 3
