"""Turns HTML into text in a process of its own, which a hostile page may kill.

`python -m marin_dagster.data.extract_worker`: a pickled `Settings` on stdin, then one (body,
content type) after the other; on stdout one `Extracted` for each. A page that takes more
processor time than allowed ends the process; whoever waits for the answer counts a timeout.
"""

import html
import importlib
import os
import pickle
import re
import resource
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass

from marin_dagster.data.documents import clean_text
from marin_dagster.data.warc import decode_html
from marin_dagster.process import die_with_parent

_TAG = re.compile(r"<(/?)([a-zA-Z][a-zA-Z0-9]*)[^<>]*?(/?)>")
_ROOT = re.compile(r"<(?:html|body)\b", re.I)
_PERMALINK = re.compile(r"\s*¶$", re.M)  # the sign behind the headings of manuals
_TITLE = re.compile(r"<title[^>]*>(.{0,500}?)</title", re.I | re.S)
_CHARSET = re.compile(r"""(<meta[^>]{0,200}?charset\s*=\s*["']?)[A-Za-z0-9_.:\-]+""", re.I)
_UNNESTED = re.compile(
    r"(?:area|base|br|col|embed|hr|img|input|link|meta|source|track|wbr|p|li|dt|dd|option)", re.I
)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How to extract, and what a page may cost."""

    extractor: str
    favor: str
    max_html_bytes: int
    max_depth: int
    cpu_seconds: float
    memory_bytes: int


@dataclass(frozen=True, kw_only=True)
class Extracted:
    """The text of a page, or the reason why there is none."""

    text: str = ""
    title: str = ""
    encoding: str = ""
    dropped: str = ""
    error: str = ""
    message: str = ""


def main() -> None:
    """Answers pages from stdin until it closes."""
    source, target = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints must not get between the answers
    settings: Settings = pickle.load(source)
    extract = _extractor(settings)
    resource.setrlimit(resource.RLIMIT_AS, (settings.memory_bytes, settings.memory_bytes))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)  # ends the process, whatever code it is in
    while True:
        try:
            body, content_type = pickle.load(source)
        except EOFError:
            return
        signal.setitimer(signal.ITIMER_PROF, settings.cpu_seconds)
        answer = extract_page(body, content_type, settings, extract)
        signal.setitimer(signal.ITIMER_PROF, 0)
        pickle.dump(answer, target)
        target.flush()


def extract_page(
    body: bytes, content_type: str, settings: Settings, extract: Callable[[str], str]
) -> Extracted:
    """Returns the text of one page; named failures become its `error`."""
    if len(body) > settings.max_html_bytes:
        return Extracted(dropped="too_large")
    page, encoding = decode_html(body, content_type)
    page = clean_text(page)
    if depth_exceeds(page, settings.max_depth):
        return Extracted(dropped="too_deep", encoding=encoding)
    found = _TITLE.search(page)
    title = " ".join(html.unescape(found[1]).split()) if found else ""
    try:
        text = _PERMALINK.sub("", clean_text(extract(page))).strip()
    except MemoryError:
        return Extracted(error="out_of_memory", message=f"above {settings.memory_bytes} bytes")
    except (ValueError, TypeError, AttributeError, LookupError, RecursionError) as error:
        return Extracted(error="extractor_failed", message=f"{type(error).__name__}: {error}")
    return Extracted(text=text, title=clean_text(title), encoding=encoding)


def depth_exceeds(page: str, limit: int) -> bool:
    """Whether elements are nested deeper than the limit, as far as tags tell."""
    if page.count("<") <= limit:
        return False
    depth = 0
    for match in _TAG.finditer(page):
        closing, name, empty = match.groups()
        if empty or _UNNESTED.fullmatch(name):
            continue
        depth += -1 if closing and depth else 0 if closing else 1
        if depth > limit:
            return True
    return False


def _extractor(settings: Settings) -> Callable[[str], str]:
    return _trafilatura(settings.favor) if settings.extractor == "trafilatura" else _resiliparse()


def _trafilatura(favor: str) -> Callable[[str], str]:
    import trafilatura
    from trafilatura.settings import use_config

    config = use_config()
    config.set("DEFAULT", "EXTRACTION_TIMEOUT", "0")  # ours is a limit of processor time

    def extract(page: str) -> str:
        if not _ROOT.search(page):
            page = f"<html><body>{page}</body></html>"  # a bare fragment would come out empty
        # the text is decoded: a charset that the page still declares must not be applied again
        text = trafilatura.extract(
            _CHARSET.sub(r"\1utf-8", page),
            config=config,
            favor_precision=favor == "precision",
            favor_recall=favor == "recall",
            include_comments=False,
            include_tables=True,
            deduplicate=False,
        )
        return text or ""

    return extract


def _resiliparse() -> Callable[[str], str]:
    from resiliparse.extract.html2text import extract_plain_text

    def extract(page: str) -> str:
        return extract_plain_text(
            page, main_content=True, alt_texts=False, comments=False, post_meta=False, links=False
        )

    return extract


if __name__ == "__main__":
    die_with_parent()
    # the classes that are pickled must be of the importable module, not of __main__
    importlib.import_module("marin_dagster.data.extract_worker").main()
