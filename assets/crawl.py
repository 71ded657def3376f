"""Seeds become pages."""

from assets.stage import stage_asset

crawl = stage_asset(
    "crawl",
    group="data",
    kinds={"scrapy"},
    description=(
        "Pages fetched politely (robots.txt, crawl delay, one host at a time) and kept as "
        "WARC; also WARC files and HTML folders that exist already."
    ),
)
