"""Turns HTML into text in a process of its own, which a hostile page may kill.

`python -m marin_dagster.data.extract_worker`: a pickled `Settings` on stdin, then one (body,
content type, number of extractors to skip) after the other; on stdout None when the libraries are
loaded, and one `Extracted` for each page. A page that takes more processor time than allowed ends
the process; `extract_child` notices.
"""

import importlib
import os
import pickle
import re
import resource
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from marin_dagster.data.documents import clean_text
from marin_dagster.data.extractors import Choice, Extractor, make_chooser
from marin_dagster.data.language import language_of
from marin_dagster.data.page_facts import PageFacts, read_facts
from marin_dagster.data.warc import decode_html
from marin_dagster.process import die_with_parent

_TAG = re.compile(r"<(/?)([a-zA-Z][a-zA-Z0-9]*)([^<>]*)>")
_PERMALINK = re.compile(r"\s*¶$", re.M)  # the sign behind the headings of manuals
_UNNESTED = frozenset(  # elements that need no end
    ("area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track",
     "wbr", "p", "li", "dt", "dd", "option")
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How to extract, and what a page may cost."""

    extractor: str
    favor: str
    output: str
    max_html_bytes: int
    max_depth: int
    cpu_seconds: float
    memory_bytes: int


@dataclass(frozen=True, kw_only=True)
class Extracted:
    """The text of a page, or the reason why there is none."""

    text: str = ""
    extractor: str = ""  # the one whose text it is
    facts: PageFacts = field(default_factory=PageFacts)
    language: str = ""
    encoding: str = ""
    dropped: str = ""
    error: str = ""
    message: str = ""


def main() -> None:
    """Answers pages from stdin until it closes."""
    source, target = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints must not get between the answers
    settings: Settings = pickle.load(source)
    choose = make_chooser(settings.extractor, settings.favor, settings.output)
    resource.setrlimit(resource.RLIMIT_AS, (settings.memory_bytes, settings.memory_bytes))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)  # ends the process, whatever code it is in
    answer = None
    while True:
        pickle.dump(answer, target)
        target.flush()
        try:
            body, content_type, skip = pickle.load(source)
        except EOFError:
            return
        signal.setitimer(signal.ITIMER_PROF, settings.cpu_seconds)
        answer = extract_page(body, content_type, settings, choose, skip)
        signal.setitimer(signal.ITIMER_PROF, 0)


def extract_page(
    body: bytes,
    content_type: str,
    settings: Settings,
    choose: Callable[[str], Choice],
    skip: int = 0,
) -> Extracted:
    """The text of one page by the first of the chosen extractors that finds any.

    The first `skip` of them are not asked. When none finds any, a named failure of the first one
    asked becomes the page's `error`.
    """
    if len(body) > settings.max_html_bytes:
        return Extracted(dropped="too_large", message=f"{len(body)} bytes")
    page, encoding = decode_html(body, content_type)
    page = clean_text(page)
    if depth_exceeds(page, settings.max_depth):
        return Extracted(dropped="too_deep", encoding=encoding, message=page[:1000])
    answers: list[Extracted] = []
    for name, extract in choose(page)[skip:]:
        answers.append(_try(name, extract, page, settings))
        if answers[-1].text:
            break
    answer = answers[-1] if answers[-1].text else answers[0]
    facts = read_facts(page)
    return replace(
        answer,
        facts=facts,
        language=language_of(answer.text),
        encoding=encoding,
        message=answer.message or facts.title,
    )


def _try(name: str, extract: Extractor, page: str, settings: Settings) -> Extracted:
    try:
        text = _PERMALINK.sub("", clean_text(extract(page))).strip()
    except MemoryError:
        message = f"{name}: above memory_bytes={settings.memory_bytes}"
        return Extracted(error="out_of_memory", message=message)
    except (ValueError, TypeError, AttributeError, LookupError, RecursionError) as error:
        return Extracted(
            error="extractor_failed", message=f"{name}: {type(error).__name__}: {error}"
        )
    return Extracted(text=text, extractor=name)


def depth_exceeds(page: str, limit: int) -> bool:
    """Whether elements are nested deeper than the limit, as far as tags tell."""
    if page.count("<") <= limit:
        return False
    depth = 0
    for closing, name, rest in _TAG.findall(page):
        if rest.endswith("/") or name.lower() in _UNNESTED:
            continue
        depth += -1 if closing and depth else 0 if closing else 1
        if depth > limit:
            return True
    return False


if __name__ == "__main__":
    die_with_parent()
    # the classes that are pickled must be of the importable module, not of __main__
    importlib.import_module("marin_dagster.data.extract_worker").main()
