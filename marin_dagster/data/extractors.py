"""Turns HTML into its main text, or into Markdown, by a library: trafilatura or resiliparse."""

import re
from collections.abc import Callable

Extractor = Callable[[str], str]

_ROOT = re.compile(r"<(?:html|body)\b", re.I)
_CHARSET = re.compile(r"""(<meta[^>]{0,200}?charset\s*=\s*["']?)[A-Za-z0-9_.:\-]+""", re.I)
_CODE, _CODE_END = re.compile(r"<pre\b", re.I), re.compile(r"(</pre\b)", re.I)
_BEFORE_BLANK = re.compile(r"\n(?=[ \t]*\n)")
_SIGN = "␤"  # alone on a line: a blank line within code
_SIGNED_LINE = re.compile(rf"^[ \t]*{_SIGN}[ \t]*$", re.M)
_ROW_END = re.compile(r"\| +$", re.M)


def make_extractors(name: str, favor: str, output: str) -> list[tuple[str, Extractor]]:
    """The named extractor, and the other one, which is asked when the first finds nothing."""
    both = {"trafilatura": _trafilatura(favor, output), "resiliparse": _resiliparse()}
    return [(name, both.pop(name)), *both.items()]


def _trafilatura(favor: str, output: str) -> Extractor:
    """The one that is best on articles. `favor` is precision, balanced or recall."""
    import trafilatura
    from trafilatura.settings import use_config

    config = use_config()
    config.set("DEFAULT", "EXTRACTION_TIMEOUT", "0")  # ours is a limit of processor time

    def extract(page: str) -> str:
        if not _ROOT.search(page):
            page = f"<html><body>{page}</body></html>"  # a bare fragment would come out empty
        # the text is decoded: a charset that the page still declares must not be applied again
        page = _CHARSET.sub(r"\1utf-8", page)
        text = trafilatura.extract(
            _sign_blank_lines(page),
            config=config,
            output_format="markdown" if output == "markdown" else "txt",
            favor_precision=favor == "precision",
            favor_recall=favor == "recall",
            include_comments=False,
            include_tables=True,
            deduplicate=False,
        )
        return _ROW_END.sub("|", _SIGNED_LINE.sub("", text or ""))

    return extract


def _sign_blank_lines(page: str) -> str:
    """Puts a sign on the blank lines of code, which trafilatura leaves out."""
    *blocks, rest = _CODE_END.split(page)
    for at in range(0, len(blocks), 2):
        if start := _CODE.search(blocks[at]):
            head, code = blocks[at][: start.end()], blocks[at][start.end() :]
            blocks[at] = head + _BEFORE_BLANK.sub(f"\n{_SIGN}", code)
    return "".join([*blocks, rest])


def _resiliparse() -> Extractor:
    """The one that is ten times as fast, and leaves code as it is. It writes no Markdown."""
    from resiliparse.extract.html2text import extract_plain_text

    def extract(page: str) -> str:
        return extract_plain_text(
            page, main_content=True, alt_texts=False, comments=False, post_meta=False, links=False
        )

    return extract
