"""Seeds become pages."""

from assets.stage import stage_asset

DESCRIPTION = """\
Pages fetched politely (robots.txt, crawl delay, one host at a time) and kept as WARC; also WARC
files and HTML folders that exist already.

| | |
| --- | --- |
| reads | seeds on hosts that the recipe names, or files |
| makes | Pages: WARC, an index, the outcome of every URL |
| look at | `outcomes`: why URLs were not kept; `errors`; pages beside the limit `max_pages` |
"""

crawl = stage_asset(
    "crawl",
    group="data",
    kinds={"scrapy"},
    description=DESCRIPTION,
)
