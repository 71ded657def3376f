"""Scores the extraction of main text on pages whose main text is known, by the sets' own scorers.

    python benchmarks/extraction.py --articles article-extraction-benchmark \
        --pages trafilatura/tests --manual /usr/share/doc/python3.11/html

`--articles` is a checkout of scrapinghub/article-extraction-benchmark (181 articles), `--pages` the
folder `tests` of adbar/trafilatura (990 pages in many languages), `--manual` a folder of Sphinx
pages: every sixth is read, and its element with the role `main` taken for the truth. `ours` goes
the way of `ExtractText`, decoding and limits included; the others call a library alone. Speeds are
pages per second of processor time, of one process.
"""

import argparse
import gzip
import importlib.util
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

from lxml import html as lxml_html

from marin_dagster.data.extract_worker import Settings, extract_page
from marin_dagster.data.extractors import make_chooser

MANUAL_STRIDE = 6
Extract = Callable[[bytes], str]


@dataclass(frozen=True)
class Page:
    """A page, and what its scorer needs to know."""

    body: bytes
    truth: Any


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--articles", type=Path)
    parser.add_argument("--pages", type=Path)
    parser.add_argument("--manual", type=Path)
    parser.add_argument("--only", help="a candidate, as it is called in the result")
    args = parser.parse_args()
    sets = {
        "articles": (args.articles, _articles),
        "pages": (args.pages, _pages),
        "manual": (args.manual, _manual),
    }
    chosen = {name: make for name, make in CANDIDATES.items() if args.only in (None, name)}
    results: dict[str, Any] = {}
    for name, (folder, load) in sets.items():
        if folder is None:
            continue
        pages, score = load(folder)
        results[name] = {"count": len(pages)}
        for candidate, make in chosen.items():
            texts, seconds = _run(make(), pages)
            found = {**score(texts), "pages_per_second": round(len(pages) / seconds, 1)}
            results[name][candidate] = found
            print(name, candidate, found, file=sys.stderr)
    versions = {library: version(library) for library in ("trafilatura", "resiliparse", "lxml")}
    print(json.dumps({"date": f"{date.today()}", "versions": versions, "sets": results}))


def _run(extract: Extract, pages: Iterable[Page]) -> tuple[list[str], float]:
    """The texts, and the seconds of processor time."""
    texts, seconds = [], 0.0
    for page in pages:
        start = time.process_time()
        try:
            text = extract(page.body)
        except (ValueError, TypeError):  # a library alone may fail; ours counts it
            text = ""
        seconds += time.process_time() - start
        texts.append(text)
    return texts, seconds


# ---- candidates


def _ours(extractor: str, **fields: Any) -> Callable[[], Extract]:
    def make() -> Extract:
        settings = Settings(
            **{
                "extractor": extractor,
                "favor": "precision",
                "output": "text",
                "max_html_bytes": 5_000_000,
                "max_depth": 1_000,
                "cpu_seconds": 20.0,
                "memory_bytes": 4_000_000_000,
                **fields,
            }
        )
        choose = make_chooser(settings.extractor, settings.favor, settings.output)
        return lambda body: extract_page(body, "text/html", settings, choose).text

    return make


def _trafilatura_alone(**fields: Any) -> Callable[[], Extract]:
    def make() -> Extract:
        import trafilatura

        return lambda body: trafilatura.extract(body, include_comments=False, **fields) or ""

    return make


def _resiliparse_alone() -> Extract:
    from resiliparse.extract.html2text import extract_plain_text
    from resiliparse.parse.encoding import bytes_to_str, detect_encoding

    def extract(body: bytes) -> str:
        page = bytes_to_str(body, detect_encoding(body))
        off = {"alt_texts": False, "comments": False, "post_meta": False}
        return extract_plain_text(page, main_content=True, **off)

    return extract


CANDIDATES: dict[str, Callable[[], Extract]] = {
    "ours": _ours("auto"),
    "ours, resiliparse": _ours("resiliparse"),
    "trafilatura": _trafilatura_alone(),
    "trafilatura, favor_precision": _trafilatura_alone(favor_precision=True),
    "resiliparse": _resiliparse_alone,
}


# ---- sets of pages, each with its score


def _articles(folder: Path) -> tuple[list[Page], Callable[[list[str]], dict[str, float]]]:
    scorer = _load(folder / "evaluate.py")
    truth = json.loads((folder / "ground-truth.json").read_text())
    pages = [
        Page(gzip.decompress((folder / "html" / f"{key}.html.gz").read_bytes()), key)
        for key in truth
    ]

    def score(texts: list[str]) -> dict[str, float]:
        found = {page.truth: {"articleBody": text} for page, text in zip(pages, texts, strict=True)}
        metrics = scorer.evaluate(truth, found, n_bootstrap=2)
        return {name: round(metrics[name], 4) for name in ("f1", "precision", "recall")}

    return pages, score


def _pages(folder: Path) -> tuple[list[Page], Callable[[list[str]], dict[str, float]]]:
    scorer = _load(folder / "eval_common.py")
    truth = scorer.load_evaldata(str(folder))
    corpus = scorer.read_corpus(str(folder), truth)
    pages = [Page(body, truth[url]) for url, (_, body) in corpus.items()]

    def score(texts: list[str]) -> dict[str, float]:
        matrix = scorer.ConfusionMatrix()
        for page, text in zip(pages, texts, strict=True):
            matrix.add(scorer.count_item(page.truth, text))
        precision, recall, _, f1 = matrix.scores()
        return {"f1": round(f1, 4), "precision": round(precision, 4), "recall": round(recall, 4)}

    return pages, score


def _manual(folder: Path) -> tuple[list[Page], Callable[[list[str]], dict[str, float]]]:
    """F1 over runs of four words, averaged over the pages; and the share of intact code lines."""
    pages = [Page(body, truth) for body, truth in _read_manual(folder)]

    def score(texts: list[str]) -> dict[str, float]:
        shared, lines = [], []
        for page, text in zip(pages, texts, strict=True):
            truth, code = page.truth
            shared.append(_overlap(_shingles(truth), _shingles(text)))
            lines += [line in text for line in code]
        intact = statistics.mean(lines) if lines else 1.0
        return {"f1": round(statistics.mean(shared), 4), "code_lines": round(intact, 4)}

    return pages, score


def _read_manual(folder: Path) -> Iterator[tuple[bytes, tuple[str, list[str]]]]:
    for path in sorted(folder.rglob("*.html"))[::MANUAL_STRIDE]:
        body = path.read_bytes()
        found = lxml_html.fromstring(body.decode("utf-8", "replace").encode()).xpath(
            "//*[@role='main']"
        )
        if not found:
            continue
        code = [
            line.rstrip()
            for block in found[0].iter("pre")
            for line in str(block.text_content()).splitlines()
        ]
        text = str(found[0].text_content()).replace("¶", "")
        if len(text) > 500:
            yield body, (text, [line for line in code if line.strip()])


def _shingles(text: str, size: int = 4) -> set[tuple[str, ...]]:
    words = text.split()
    return {tuple(words[at : at + size]) for at in range(max(1, len(words) - size + 1))}


def _overlap(truth: set[tuple[str, ...]], found: set[tuple[str, ...]]) -> float:
    return 2 * len(truth & found) / (len(truth) + len(found))


def _load(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(f"scorer_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main()
