"""Turns HTML into its main text, or into Markdown, by a library: trafilatura or resiliparse."""

import re
from collections.abc import Callable

Extractor = Callable[[str], str]
Choice = list[tuple[str, Extractor]]  # libraries by name, in the order in which they are asked

# measured by benchmarks/extraction.py; scores hardly change between 0.4 and 0.7
_MIN_SHARE = 0.5  # of the characters that resiliparse finds; below, precision has lost too much
_MIN_CODE_ELEMENTS = 20  # of a technical page, and no fewer than paragraphs

_ROOT = re.compile(r"<(?:html|body)\b", re.I)
_CHARSET = re.compile(r"""(<meta[^>]{0,200}?charset\s*=\s*["']?)[A-Za-z0-9_.:\-]+""", re.I)
_CODE, _CODE_END = re.compile(r"<pre\b", re.I), re.compile(r"(</pre\b)", re.I)
_CODE_ELEMENT = re.compile(r"<(?:pre|code|dt|kbd|samp)\b", re.I)
_PARAGRAPH = re.compile(r"<p\b", re.I)
_BEFORE_BLANK = re.compile(r"\n(?=[ \t]*\n)")
_SIGN = "␤"  # alone on a line: a blank line within code
_SIGNED_LINE = re.compile(rf"^[ \t]*{_SIGN}[ \t]*$", re.M)
_ROW_END = re.compile(r"\| +$", re.M)


def make_chooser(name: str, favor: str, output: str) -> Callable[[str], Choice]:
    """What tells the extractor for a page, and the other one, asked when the first finds nothing.

    `auto` takes resiliparse for technical pages, whose code it leaves as it is, at ten times the
    speed. For others it takes trafilatura, which is better at articles.
    """
    resiliparse = _resiliparse()
    trafilatura = _careful(output, resiliparse) if name == "auto" else _trafilatura(favor, output)
    articles = [("trafilatura", trafilatura), ("resiliparse", resiliparse)]
    manuals = articles[::-1]
    if name == "auto" and output == "text":
        return lambda page: manuals if is_technical(page) else articles
    return lambda page: manuals if name == "resiliparse" else articles


def is_technical(page: str) -> bool:
    """Whether a page holds as many pieces of code and defined terms as paragraphs, and many."""
    code = len(_CODE_ELEMENT.findall(page))
    return code >= _MIN_CODE_ELEMENTS and code > len(_PARAGRAPH.findall(page))


def _careful(output: str, resiliparse: Extractor) -> Extractor:
    """trafilatura for precision; without, where that leaves much less than resiliparse finds."""
    precise, balanced = _trafilatura("precision", output), _trafilatura("balanced", output)

    def extract(page: str) -> str:
        text = precise(page)
        return text if len(text) >= _MIN_SHARE * len(resiliparse(page)) else balanced(page)

    return extract


def _trafilatura(favor: str, output: str) -> Extractor:
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
    from resiliparse.extract.html2text import extract_plain_text

    def extract(page: str) -> str:
        return extract_plain_text(
            page, main_content=True, alt_texts=False, comments=False, post_meta=False, links=False
        )

    return extract
