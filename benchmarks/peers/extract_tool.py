"""Does one tool's share of extraction in `data.py`: `extract_tool.py TOOL FOLDER WORKERS RESULT`.

FOLDER holds pages, `article/*.html` and `technical/*.html`, and a store with a crawl of them.
"""

import json
import multiprocessing
import os
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from marin_dagster.data.crawl import ImportHtml
from marin_dagster.data.html import ExtractText

PAGES, STORE = "pages", "store"
WARC_BYTES = 1_000_000  # small files, so that two workers have an equal share
CHUNK = 16  # pages that a peer's process takes at a time


def recipe(folder: str) -> ExtractText:
    """The text of the folder's pages."""
    made = {"name": "benchmark", "version": "dev"}
    pages = ImportHtml(
        **made,
        folder=os.path.join(folder, PAGES),
        base_url="http://benchmark.test/",
        warc_bytes=WARC_BYTES,
    )
    return ExtractText(**made, pages=pages)


def ours(folder: str, workers: int) -> int:
    """The whole stage: from web archives to documents that are committed."""
    from marin_dagster.recipe import Placement
    from marin_dagster.store import Store

    store = Store(os.path.join(folder, STORE))
    made = store.build(recipe(folder), force=True, placement=Placement(workers=workers))
    return int(made.record.summary.numbers["documents"])


def chosen(folder: str, workers: int) -> int:
    """The library alone that `ours` asks first for a page; texts are not kept."""
    return _peer(_chosen, folder, workers)


def trafilatura(folder: str, workers: int) -> int:
    """trafilatura alone, for every page."""
    return _peer(_trafilatura, folder, workers)


def resiliparse(folder: str, workers: int) -> int:
    """resiliparse alone, for every page."""
    return _peer(_resiliparse, folder, workers)


def _peer(extract: Callable[[Path], bool], folder: str, workers: int) -> int:
    paths = sorted(Path(folder, PAGES).rglob("*.html"))
    if workers == 1:
        return sum(map(extract, paths))
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        found = sum(pool.imap(extract, paths, CHUNK))
        pool.close()
        pool.join()
    return found


def _chosen(path: Path) -> bool:
    return _resiliparse(path) if path.parent.name == "technical" else _trafilatura(path)


def _trafilatura(path: Path) -> bool:
    import trafilatura as library

    return bool(library.extract(path.read_bytes(), include_comments=False))


def _resiliparse(path: Path) -> bool:
    from resiliparse.extract.html2text import extract_plain_text
    from resiliparse.parse.encoding import bytes_to_str, detect_encoding

    body = path.read_bytes()
    off = {"alt_texts": False, "comments": False, "post_meta": False}
    return bool(
        extract_plain_text(bytes_to_str(body, detect_encoding(body)), main_content=True, **off)
    )


def _cpu_seconds() -> float:
    every = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in every)


def main(tool: str, folder: str, workers: int, result: str) -> None:
    before, began = _cpu_seconds(), time.perf_counter()
    documents = TOOLS[tool](folder, workers)
    found: dict[str, Any] = {
        "documents": documents,
        "seconds": time.perf_counter() - began,
        "cpu_seconds": _cpu_seconds() - before,
    }
    Path(result).write_text(json.dumps(found))


TOOLS = {"ours": ours, "chosen": chosen, "trafilatura": trafilatura, "resiliparse": resiliparse}

if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])
