"""Turns Documents into ones without e-mail and IP addresses: placeholders stand in their place."""

import json
import os
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from marin_dagster.data.documents import Document
from marin_dagster.data.pipeline import DocumentStep, Drop, Keep, map_documents
from marin_dagster.kinds import Documents
from marin_dagster.recipe import Context, Summary

EVIDENCE_FILE = "replaced.jsonl"
EMAIL = "email@example.com"
IP = "192.0.2.1"  # reserved for documentation (RFC 5737)


@dataclass(frozen=True, kw_only=True)
class ReplaceAddresses(Documents):
    """Replaces e-mail addresses and public IPv4 addresses, by the patterns of datatrove.

    A version number of four parts may look like an IP address, and is then replaced too.
    """

    stage = "filtered"

    documents: Documents
    emails: bool = True
    ips: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.emails or self.ips):
            raise ValueError(f"{self.address} replaces nothing; set emails or ips")

    def build(self, ctx: Context) -> Summary:
        """Replaces in worker processes, and counts what was replaced."""
        step = _Replace(self.emails, self.ips)
        report = map_documents(ctx, ctx.path(self.documents), step, evidence_file=EVIDENCE_FILE)
        totals = Counter(documents_changed=0, emails_replaced=0, ips_replaced=0)
        with open(os.path.join(ctx.out, EVIDENCE_FILE), encoding="utf-8") as file:
            for row in map(json.loads, file):
                totals.update(
                    documents_changed=1, emails_replaced=row["emails"], ips_replaced=row["ips"]
                )
        numbers = {**report.numbers(), **totals}
        return Summary(numbers=numbers, counts=report.counts, tables=report.tables())


@dataclass(frozen=True)
class _Replace(DocumentStep):
    emails: bool
    ips: bool

    def judge(self, document: Document, shard: int, row: int) -> Keep | Drop:
        text = document["text"]
        formatter = _formatter()
        found = {"emails": 0, "ips": 0}
        if self.emails and "@" in text:
            text, found["emails"] = _replace(formatter.emails_replacer, text)
        if self.ips:
            text, found["ips"] = _replace(formatter.ip_replacer, text)
        if not any(found.values()):
            return Keep(document)
        evidence = {"id": document["id"], "source": document["source"], **found}
        return Keep({**document, "text": text}, evidence=evidence)


@lru_cache(maxsize=1)
def _formatter() -> Any:
    """One placeholder of each kind: datatrove's own take turns over documents."""
    from datatrove.pipeline.formatters.pii import PIIFormatter

    return PIIFormatter(email_replacement=EMAIL, ip_replacement=IP)


def _replace(replacer: Any, text: str) -> tuple[str, int]:
    found = (match[0] for match in replacer.regex.finditer(text))
    count = sum(replacer.validator is None or replacer.validator(value) for value in found)
    return (replacer.replace(text) if count else text), count
