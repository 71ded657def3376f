"""Turns HTML into what the page says of itself: title, date of publication, licence."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from html import unescape
from typing import Any

from resiliparse.parse.html import HTMLTree

from marin_dagster.data.documents import clean_text

_MAX_CHARACTERS = 500  # of a title or a licence
_DATE_NAMES = (  # of meta elements, the surest first
    "article:published_time",
    "datepublished",
    "citation_publication_date",
    "dcterms.issued",
    "dc.date.issued",
    "dcterms.date",
    "dc.date",
    "pubdate",
    "date",
)
_LICENCE_NAMES = ("dcterms.license", "dc.rights.license", "dcterms.rights", "dc.rights")
_META = re.compile(r"<meta\b[^>]{0,2000}>", re.I)  # a walk over the tree's elements is slow
_ATTRIBUTE = re.compile(r"""([a-z-]+)\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s"'>]+))""", re.I)
_JSON_DATE = re.compile(r'"datePublished"\s*:\s*"([^"]{8,40})"')
_DATE = re.compile(r"(\d{4})[-/](\d\d?)[-/](\d\d?)")
_COMMONS = re.compile(r"creativecommons\.org/(licenses|publicdomain)/([a-z+-]+)/(\d\.\d)", re.I)


@dataclass(frozen=True, kw_only=True)
class PageFacts:
    """Empty where the page does not say. `date` is an ISO date, `license` an SPDX name or a URL."""

    title: str = ""
    date: str = ""
    license: str = ""


def read_facts(page: str) -> PageFacts:
    """Reads `title` and `meta` elements, JSON-LD, and links marked as a licence."""
    tree = HTMLTree.parse(page)
    if tree.document is None:  # nothing but blanks
        return PageFacts()
    named = _meta(page)
    title = tree.title or named.get("og:title", "")
    dates = [named.get(name, "") for name in _DATE_NAMES] + _JSON_DATE.findall(page)[:1]
    licences = [*_licence_links(tree.document), *(named.get(name, "") for name in _LICENCE_NAMES)]
    return PageFacts(
        title=_line(title),
        date=next(filter(None, map(_iso_date, dates)), ""),
        license=next(filter(None, map(_licence_name, licences)), ""),
    )


def _meta(page: str) -> dict[str, str]:
    """Content of meta elements by name in lower case; the first of equal names counts."""
    found: dict[str, str] = {}
    for tag in _META.findall(page):
        attributes: dict[str, str] = {}
        for name, *values in _ATTRIBUTE.findall(tag):
            attributes.setdefault(name.lower(), unescape("".join(values)))
        for key in ("property", "name", "itemprop"):
            if key in attributes:
                found.setdefault(attributes[key].lower(), attributes.get("content", ""))
    return found


def _licence_links(document: Any) -> Iterator[str]:
    for selector in ("link[rel~=license]", "a[rel~=license]", "footer a[href*=creativecommons]"):
        element = document.query_selector(selector)
        if element is not None:
            yield element.getattr("href") or ""


def _iso_date(text: str) -> str:
    found = _DATE.match(text.strip())
    if not found:
        return ""
    try:
        return date(int(found[1]), int(found[2]), int(found[3])).isoformat()
    except ValueError:  # a month 13
        return ""


def _licence_name(text: str) -> str:
    found = _COMMONS.search(text)
    if not found:
        return _line(text)
    kind, number = found[2].upper(), found[3]
    if found[1].lower() == "publicdomain":
        return f"CC0-{number}" if kind == "ZERO" else _line(text)
    return f"CC-{kind}-{number}"


def _line(text: str) -> str:
    return clean_text(" ".join(text.split()))[:_MAX_CHARACTERS]
