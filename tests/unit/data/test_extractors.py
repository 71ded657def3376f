"""Text and Markdown of small pages by each library."""

import pytest

from marin_dagster.data.extractors import is_technical, make_chooser

PROSE = "This guide tells how rows are packed into batches, and why their order does not matter. "
PAGE = f"""<!DOCTYPE html><html><head><title>Rows</title></head><body>
<nav><a href="/">Home</a></nav>
<article><h1>Rows</h1><p>{PROSE} It is <strong>short</strong>, and <em>true</em>.</p>
<h2>An example</h2><p>Call <code>pack(rows)</code> and read what comes out of it:</p>
<pre><code>def pack(rows):
    for row in rows:
        yield row


print(pack([]))
</code></pre>
<p>There are three things to know before you use it:</p>
<ul><li>It is lazy.</li><li>It drops empty rows.<ul><li>All of them.</li></ul></li></ul>
<ol><li>Open</li><li>Close</li></ol>
<table><tr><th>Name</th><th>Size</th></tr><tr><td>small</td><td>1</td></tr></table>
<p>The loss is \\(L = \\sum_i x_i^2\\), and {PROSE}</p>
<div class="highlight"><pre><span></span><span class="k">import</span> <span>os</span>

<span>os</span><span>.</span><span>getcwd</span>()
</pre></div></article><footer>All rights reserved</footer></body></html>"""
CODE = "def pack(rows):\n    for row in rows:\n        yield row\n\n\nprint(pack([]))"


def first(name: str, output: str = "text") -> str:
    return make_chooser(name, "precision", output)(PAGE)[0][1](PAGE)


@pytest.mark.parametrize("name", ["trafilatura", "resiliparse"])
def test_code_keeps_its_lines_and_their_indentation(name: str):
    text = first(name)
    assert CODE in text
    assert "import os\n\nos.getcwd()" in text
    assert "reserved" not in text


@pytest.mark.parametrize(
    "part",
    [
        "# Rows\n",
        "## An example\n",
        "It is **short**, and *true*.",
        "Call `pack(rows)` and",
        f"```\n{CODE}\n```",
        "```\nimport os\n\nos.getcwd()\n```",
        "- It is lazy.\n- It drops empty rows.\n  - All of them.\n",
        "1. Open\n2. Close\n",
        "| Name | Size |\n|---|---|\n| small | 1 |\n",
        r"$L = \sum_i x_i^2$",
    ],
)
def test_markdown_keeps_the_structure(part: str):
    assert part in first("trafilatura", "markdown")


def test_auto_takes_each_page_to_the_better_library():
    choose = make_chooser("auto", "precision", "text")
    manual = "<dl>" + "<dt>pack(rows)</dt><dd><p>Packs.</p><pre>pack([])</pre></dd>" * 20 + "</dl>"
    assert is_technical(manual)
    assert not is_technical(PAGE)
    assert [name for name, _ in choose(manual)] == ["resiliparse", "trafilatura"]
    assert [name for name, _ in choose(PAGE)] == ["trafilatura", "resiliparse"]
    markdown = make_chooser("auto", "precision", "markdown")
    assert markdown(manual)[0][0] == "trafilatura"
