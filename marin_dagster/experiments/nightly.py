"""An experiment that recurs: a made-up site is crawled again and becomes tokens, night by night.

`marin renew nightly`, or the schedule `renew_nightly`, adds the version of the day.
"""

from typing import Any

from marin_dagster.data.crawl import Crawl
from marin_dagster.data.dedup import Deduplicate
from marin_dagster.data.filter import FilterDocuments, MinWords
from marin_dagster.data.html import ExtractText
from marin_dagster.data.site import GeneratedSite
from marin_dagster.data.tokenize import TokenizeDocuments
from marin_dagster.data.tokenizer import TrainTokenizer
from marin_dagster.experiments.recurring import Recurrence
from marin_dagster.recipe import DEV, Recipe

VERSIONS = (DEV,)
RECURS = Recurrence(cron="0 2 * * *", timezone="UTC")


def experiment(version: str) -> tuple[Recipe, ...]:
    """From a crawl of the site as it is that day to its tokens."""
    base: dict[str, Any] = {"name": "nightly", "version": version}
    # The seed is the site: another one every day, as a real site changes by itself.
    seed = 0 if version == DEV else int(version.replace(".", ""))
    site = GeneratedSite(host="news.test", seed=seed, num_pages=40)
    pages = Crawl(
        **base,
        seeds=("http://news.test/",),
        sites=(site,),
        max_pages=120,
        requests_per_host=16,  # it is our own site
    )
    text = ExtractText(**base, pages=pages)
    long = FilterDocuments(**base, documents=text, rules=(MinWords(words=20),))
    documents = Deduplicate(**base, documents=long)
    tokenizer = TrainTokenizer(**base, documents=(documents,), vocab_size=512)
    return (TokenizeDocuments(**base, documents=documents, tokenizer=tokenizer),)
