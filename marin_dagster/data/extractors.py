"""Turns HTML into its main text by a library: trafilatura, resiliparse."""

import re
from collections.abc import Callable

Extractor = Callable[[str], str]

_ROOT = re.compile(r"<(?:html|body)\b", re.I)
_CHARSET = re.compile(r"""(<meta[^>]{0,200}?charset\s*=\s*["']?)[A-Za-z0-9_.:\-]+""", re.I)


def make_extractors(name: str, favor: str) -> list[tuple[str, Extractor]]:
    """The named extractor, and the other one, which is asked when the first finds nothing."""
    both = {"trafilatura": _trafilatura(favor), "resiliparse": _resiliparse()}
    return [(name, both.pop(name)), *both.items()]


def _trafilatura(favor: str) -> Extractor:
    """The one that is best on articles. `favor` is precision, balanced or recall."""
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


def _resiliparse() -> Extractor:
    """The one that is ten times as fast, and leaves code as it is."""
    from resiliparse.extract.html2text import extract_plain_text

    def extract(page: str) -> str:
        return extract_plain_text(
            page, main_content=True, alt_texts=False, comments=False, post_meta=False, links=False
        )

    return extract
