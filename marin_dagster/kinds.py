"""Turns recipes into kinds: what a stage may ask for, and how its files are laid out.

A recipe declares the kind that it makes by subclassing it, and takes kinds as inputs, so that it
never depends on who made them.
"""

from dataclasses import dataclass

from marin_dagster.recipe import Recipe


@dataclass(frozen=True, kw_only=True)
class Pages(Recipe):
    """Fetched pages: `warc/*.warc.gz`, and `crawl.jsonl` with one line per URL asked for."""


@dataclass(frozen=True, kw_only=True)
class Documents(Recipe):
    """Texts: `documents/NNNNN.jsonl.zst`, rows `id, text, source, created, added, metadata`.

    The rows are Dolma's. Attributes stand beside them under `attributes/<name>/`, with the same
    shards and order.
    """


@dataclass(frozen=True, kw_only=True)
class Conversations(Recipe):
    """Chats: `conversations/NNNNN.jsonl.zst`, rows `id, messages[{role, content}], source`."""


@dataclass(frozen=True, kw_only=True)
class Tasks(Recipe):
    """Evaluation tasks: `tasks/<task>.yaml` and `tasks/<task>.jsonl` for lm-evaluation-harness."""


@dataclass(frozen=True, kw_only=True)
class Classifier(Recipe):
    """A text classifier: `model.bin` (fastText), `report.json`."""


@dataclass(frozen=True, kw_only=True)
class Tokenizer(Recipe):
    """A tokenizer: `tokenizer.json` and its configuration; if trained here, `tokenizer.model`."""


@dataclass(frozen=True, kw_only=True)
class TokenCache(Recipe):
    """Token ids: `tokens.bin`, `offsets.bin` (int64, documents + 1), `cache.json`.

    A cache of chats also has `weights.bin`, the loss weight of every token.
    """


@dataclass(frozen=True, kw_only=True)
class Checkpoint(Recipe):
    """A trained model: `model/`, `config.json`, and `metrics.jsonl` with a line per logged step."""


@dataclass(frozen=True, kw_only=True)
class EvalReport(Recipe):
    """Scores: `results.json` and `samples_<task>.jsonl` in lm-evaluation-harness's layout."""


@dataclass(frozen=True, kw_only=True)
class HuggingFaceModel(Recipe):
    """A folder that `transformers` loads: safetensors, configuration, tokenizer, chat template."""


@dataclass(frozen=True, kw_only=True)
class Report(Recipe):
    """A page for people: one self-contained `index.html`."""
