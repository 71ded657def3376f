"""One exported model for all tests that need torch and transformers (the extra `export`)."""

from types import SimpleNamespace

import pytest

from marin_dagster.data.tokenizer import load_tokenizer
from marin_dagster.evaluation.export import ExportHuggingFace
from marin_dagster.training.model_files import load_model
from tests.fake_context import build
from tests.unit.data.corpus import TOKENIZER, build_tokenizer
from tests.unit.evaluation.models import MODEL

EXPORT = ExportHuggingFace(name="x", version="dev", checkpoint=MODEL, tokenizer=TOKENIZER)


@pytest.fixture(scope="session")
def exported(tmp_path_factory):
    root = build_tokenizer(tmp_path_factory.mktemp("export"))
    build(MODEL, root)
    summary = build(EXPORT, root)
    return SimpleNamespace(
        root=root,
        folder=str(root / "artifacts" / EXPORT.address),
        summary=summary,
        model=load_model(str(root / "artifacts" / MODEL.address))[0],
        tokenizer=load_tokenizer(str(root / "artifacts" / TOKENIZER.address)),
    )
