import json
from pathlib import Path

import pytest

from marin_dagster.data.documents import document_id, read_documents
from marin_dagster.data.personal import EMAIL, IP, ReplaceAddresses
from tests.fake_context import FakeContext, build
from tests.unit.data.toy_documents import ToyDocuments, in_this_process, write_documents

TEXTS = [
    "Write to jane.doe@mail.example.org or joe@lab.test, or ping 8.8.4.4 and 10.0.0.1.",
    "Nothing @ all, version 1.2.3.",
]


def run(root: Path, **fields):
    toy = write_documents(root, TEXTS)
    recipe = ReplaceAddresses(name="out", version="dev", documents=toy, **fields)
    with in_this_process():
        summary = build(recipe, root)
    out = FakeContext(recipe, root).out
    rows = [json.loads(line) for line in Path(out, "replaced.jsonl").read_text().splitlines()]
    return summary, [document["text"] for document in read_documents(out)], rows


def test_addresses_are_replaced_and_counted(tmp_path):
    summary, texts, rows = run(tmp_path)
    assert texts == [f"Write to {EMAIL} or {EMAIL}, or ping {IP} and 10.0.0.1.", TEXTS[1]]
    assert rows == [{"id": document_id(TEXTS[0]), "source": "toy", "emails": 2, "ips": 1}]
    assert summary.numbers["emails_replaced"] == 2
    assert summary.numbers["ips_replaced"] == 1
    assert summary.numbers["documents_changed"] == 1


def test_one_kind_may_stay(tmp_path):
    assert "8.8.4.4" in run(tmp_path, ips=False)[1][0]
    toy = ToyDocuments(name="toy", version="dev")
    with pytest.raises(ValueError, match="replaces nothing"):
        ReplaceAddresses(name="x", version="dev", documents=toy, ips=False, emails=False)
