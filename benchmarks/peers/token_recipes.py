"""The recipes of `tokens.py`: documents, a tokenizer and a token cache."""

import os

from marin_dagster.data.raw import LocalDocuments
from marin_dagster.data.tokenize import TokenizeDocuments
from marin_dagster.data.tokenizer import TrainTokenizer

INPUT = "documents.jsonl"
STORE = "store"
MADE = {"name": "benchmark", "version": "dev"}


def token_recipe(folder: str, vocab_size: int) -> TokenizeDocuments:
    """The token cache of a folder's documents, through a tokenizer that is trained on them."""
    documents = LocalDocuments(**MADE, paths=(os.path.join(folder, INPUT),))
    tokenizer = TrainTokenizer(
        **MADE, documents=(documents,), vocab_size=vocab_size, sample_bytes=20_000_000
    )
    return TokenizeDocuments(**MADE, documents=documents, tokenizer=tokenizer)
