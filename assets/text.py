"""Pages become documents."""

from assets.stage import stage_asset

DESCRIPTION = """\
The main text of every page, without menus, adverts and footers; every page is accounted for.

| | |
| --- | --- |
| reads | Pages |
| makes | Documents with url, title, date, licence, language; a record per page |
| look at | `lost_fraction`: HTML pages without a text; `dropped`, `languages`, `extractors` |
"""

text = stage_asset(
    "text",
    group="data",
    kinds={"trafilatura"},
    description=DESCRIPTION,
)
