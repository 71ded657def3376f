"""Turns datasets of the Hugging Face hub, local files and seeds into documents, chats and tasks."""

import json
import os
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from marin_dagster.data.files import expand_paths, local_copy
from marin_dagster.data.stories import CHATS, HELD_OUT, cloze, question, story
from marin_dagster.kinds import Conversations, Documents, Tasks
from marin_dagster.recipe import Context, Counts, StageError, Summary

NUM_EXAMPLES = 5


@dataclass(frozen=True, kw_only=True)
class HubDataset(Documents):
    """Takes the texts of a dataset on the Hugging Face hub, or in a local dataset folder.

    With `max_documents` the rows are streamed and the first ones taken. Offline mode
    (HF_HUB_OFFLINE=1) reads what the hub's cache holds.
    """

    stage: ClassVar[str] = "raw"

    repo: str  # "owner/name", or a local folder
    revision: str  # commit or tag: a branch moves. Not used for a local folder
    split: str = "train"
    subset: str | None = None
    text_field: str = "text"
    max_documents: int | None = None
    max_error_fraction: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.revision:
            raise ValueError(
                f"revision='' of {self.address} is empty; name a commit of {self.repo}, so that "
                "the same recipe reads the same rows"
            )
        _check_positive(self, "max_documents")

    def build(self, ctx: Context) -> Summary:
        rows = _hub_rows(self, ctx.placement.hub_token)
        return _write_documents(ctx, self, _limited(rows, self.max_documents), self.repo)


@dataclass(frozen=True, kw_only=True)
class LocalDocuments(Documents):
    """Takes texts from files: .jsonl and .txt, also .gz and .zst, and .parquet.

    A .txt file is one document; a row of the others has its text in `text_field`. `paths` are
    files or patterns, local or of any fsspec file system.
    """

    stage: ClassVar[str] = "raw"

    paths: tuple[str, ...]
    text_field: str = "text"
    source: str = "local"
    max_documents: int | None = None
    max_error_fraction: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_positive(self, "max_documents")

    def build(self, ctx: Context) -> Summary:
        rows = _file_rows(expand_paths(self.paths, self.address), self.text_field)
        return _write_documents(ctx, self, _limited(rows, self.max_documents), self.source)


@dataclass(frozen=True, kw_only=True)
class StoryConversations(Conversations):
    """Makes short questions and answers on small stories, from a seed."""

    stage: ClassVar[str] = "raw"

    seed: int
    num_conversations: int
    first: int = CHATS  # index of the first story

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_positive(self, "num_conversations")

    def build(self, ctx: Context) -> Summary:
        from marin_dagster.data.documents import ConversationWriter

        turns = 0
        with ConversationWriter(ctx.out) as writer:
            for index in range(self.first, self.first + self.num_conversations):
                messages = question(story(self.seed, index))
                turns += len(messages)
                writer.write(
                    {
                        "id": f"story-{self.seed}-{index}",
                        "messages": messages,  # type: ignore[typeddict-item]
                        "source": "stories",
                        "metadata": {},
                    }
                )
                ctx.progress(writer.num_conversations, self.num_conversations, "conversations")
        count = self.num_conversations
        return Summary(
            numbers={"conversations": count, "messages": turns},
            counts=Counts(unit="conversations", read=count, kept=count),
        )


@dataclass(frozen=True, kw_only=True)
class StoryTasks(Tasks):
    """Makes evaluation tasks of stories that no site shows, except those that it leaks.

    `story_cloze` asks for the right continuation of a story out of four; `story_heldout` measures
    bits per byte on whole stories. Scores of `story_cloze` by kind of question stand in the rows.
    """

    stage: ClassVar[str] = "raw"

    seed: int
    num_examples: int  # of story_cloze
    num_heldout: int = 100  # stories of story_heldout
    first: int = HELD_OUT  # index of the first story

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_positive(self, "num_examples")
        _check_positive(self, "num_heldout")
        if not HELD_OUT <= self.first < CHATS:
            raise ValueError(
                f"first={self.first} of {self.address} is not within {HELD_OUT} and {CHATS}, the "
                "stories that sites and chats do not use; leave it out, or choose within"
            )

    def build(self, ctx: Context) -> Summary:
        folder = os.path.join(ctx.out, "tasks")
        os.makedirs(folder)
        items = _cloze_rows(self.seed, self.first, self.num_examples)
        kinds = Counter(item["kind"] for item in items)
        _write_task(folder, "story_cloze", _CLOZE_YAML, items)
        texts = [
            {"text": story(self.seed, index).text}
            for index in range(self.first, self.first + self.num_heldout)
        ]
        _write_task(folder, "story_heldout", _HELDOUT_YAML, texts)
        count = self.num_examples + self.num_heldout
        return Summary(
            numbers={"tasks": 2, "examples": count},
            counts=Counts(unit="examples", read=count, kept=count),
            tables={"story_cloze": [{"kind": kind, "examples": n} for kind, n in kinds.items()]},
        )


@dataclass(frozen=True, kw_only=True)
class LocalTasks(Tasks):
    """Takes in lm-evaluation-harness tasks of your own: YAML files and the data beside them."""

    stage: ClassVar[str] = "raw"

    paths: tuple[str, ...]

    def build(self, ctx: Context) -> Summary:
        folder = os.path.join(ctx.out, "tasks")
        os.makedirs(folder)
        names: list[str] = []
        for path in expand_paths(self.paths, self.address):
            name = os.path.basename(path)
            if name in names:
                raise StageError(
                    "bad_input",
                    f"{self.address}: two of paths are called {name!r}; rename one of them",
                )
            names.append(name)
            with local_copy(path) as local:
                shutil.copyfile(local, os.path.join(folder, name))
        tasks = [name for name in names if name.endswith((".yaml", ".yml"))]
        if not tasks:
            raise StageError(
                "bad_input",
                f"{self.address}: paths={self.paths!r} has no *.yaml; add the task's YAML file",
            )
        return Summary(
            numbers={"tasks": len(tasks), "files": len(names)},
            counts=Counts(unit="files", read=len(names), kept=len(names)),
        )


# ---- documents


@dataclass(frozen=True, kw_only=True)
class _Row:
    """A text with its metadata, or why a row has none."""

    text: str = ""
    error: str = ""
    message: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)


def _write_documents(
    ctx: Context, recipe: "HubDataset | LocalDocuments", rows: Iterable[_Row], source: str
) -> Summary:
    from marin_dagster.data.documents import DocumentWriter, new_document

    read = chars = 0
    dropped: Counter[str] = Counter()
    errors: Counter[str] = Counter()
    examples: list[dict[str, Any]] = []
    with DocumentWriter(ctx.out) as writer:
        for row in rows:
            read += 1
            document = new_document(row.text, source=source, metadata=row.metadata)
            if row.error:
                errors[row.error] += 1
                if len(examples) < NUM_EXAMPLES:
                    examples.append({"reason": row.error, "message": row.message})
            elif not document["text"].strip():
                dropped["empty_text"] += 1
            else:
                chars += len(document["text"])
                writer.write(document)
            ctx.progress(read, recipe.max_documents)
        kept = writer.num_documents
    counts = Counts(unit="documents", read=read, kept=kept, dropped=dropped, errors=errors)
    if not kept or sum(errors.values()) > recipe.max_error_fraction * read:
        reasons = ", ".join(f"{name} {n}" for name, n in {**dropped, **errors}.items())
        told = "; ".join(row["message"] for row in examples)
        raise StageError(
            "bad_input",
            f"{recipe.address} kept {kept} of {read} documents: {reasons or 'no row'} ({told}); "
            f"correct text_field={recipe.text_field!r} or the data, or raise "
            f"max_error_fraction={recipe.max_error_fraction}",
        )
    return Summary(
        numbers={"documents": kept, "characters": chars},
        counts=counts,
        tables={"errors": examples},
    )


def _hub_rows(recipe: HubDataset, token: str | None) -> Iterator[_Row]:
    import datasets
    from huggingface_hub.errors import HfHubHTTPError

    is_local = os.path.isdir(recipe.repo)
    try:
        rows = datasets.load_dataset(
            recipe.repo,
            recipe.subset,
            split=recipe.split,
            revision=None if is_local else recipe.revision,
            streaming=recipe.max_documents is not None,
            token=token,
        )
        for number, row in enumerate(rows):
            yield _row(row, recipe.text_field, f"row {number} of {recipe.repo}")
    except (OSError, ValueError, HfHubHTTPError) as error:
        way_out = (
            "check repo, revision, subset and split, and that this machine reaches "
            "huggingface.co (a gated dataset needs a token); or download the dataset elsewhere "
            "and give its folder as repo, or its files to LocalDocuments"
        )
        raise StageError(
            "bad_input",
            f"{recipe.address}: repo={recipe.repo!r} at revision={recipe.revision!r} cannot be "
            f"read ({type(error).__name__}: {error}); {way_out}",
        ) from error


def _file_rows(paths: list[str], text_field: str) -> Iterator[_Row]:
    for path in paths:
        with local_copy(path) as local:
            stem = local.removesuffix(".gz").removesuffix(".zst")
            if stem.endswith(".parquet"):
                yield from _parquet_rows(local, path, text_field)
            elif stem.endswith(".txt"):
                with _open(local) as file:
                    text = file.read().decode("utf-8", "replace")
                yield _Row(text=text, metadata={"file": os.path.basename(path)})
            elif stem.endswith((".jsonl", ".ndjson")):
                yield from _json_rows(local, path, text_field)
            else:
                raise StageError(
                    "bad_input",
                    f"paths has {path!r}, whose format is not known; "
                    "use .jsonl or .txt (also .gz, .zst) or .parquet",
                )


def _json_rows(local: str, path: str, text_field: str) -> Iterator[_Row]:
    with _open(local) as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            where = f"{path} line {number}"
            try:
                row = json.loads(line)
            except ValueError as error:
                yield _Row(error="bad_json", message=f"{where}: {error}")
            else:
                yield _row(row, text_field, where)


def _parquet_rows(local: str, path: str, text_field: str) -> Iterator[_Row]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(local) as table:
            number = 0
            for batch in table.iter_batches(batch_size=1024):
                for row in batch.to_pylist():
                    yield _row(row, text_field, f"{path} row {number}")
                    number += 1
    except pa.ArrowInvalid as error:
        raise StageError(
            "bad_input", f"{path} is not a readable Parquet file ({error}); get it again"
        ) from error


def _row(row: Any, text_field: str, where: str) -> _Row:
    if not isinstance(row, Mapping) or not isinstance(row.get(text_field), str):
        has = ", ".join(map(str, row)) if isinstance(row, Mapping) else type(row).__name__
        message = f"{where} has no text in field {text_field!r}, it has {has}"
        return _Row(error="no_text_field", message=message)
    plain = (str, int, float, bool)
    metadata = {
        key: value for key, value in row.items() if key != text_field and isinstance(value, plain)
    }
    return _Row(text=row[text_field], metadata=metadata)


def _open(path: str) -> Any:
    """Opens a plain, gzip or zstd file for reading bytes."""
    import gzip
    import io

    if path.endswith(".gz"):
        return gzip.open(path, "rb")
    if path.endswith(".zst"):
        import zstandard

        file = open(path, "rb")  # noqa: SIM115
        reader = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True)
        return io.BufferedReader(reader)  # type: ignore[arg-type]
    return open(path, "rb")


def _limited(rows: Iterator[_Row], limit: int | None) -> Iterator[_Row]:
    for number, row in enumerate(rows):
        if limit is not None and number >= limit:
            return
        yield row


# ---- tasks

_CLOZE_YAML = """\
task: story_cloze
dataset_path: json
dataset_kwargs:
  data_files:
    test: story_cloze.jsonl
test_split: test
output_type: multiple_choice
doc_to_text: "{{context}}"
doc_to_choice: "{{choices}}"
doc_to_target: label
target_delimiter: " "
num_fewshot: 0
metric_list:
  - metric: acc
    aggregation: mean
    higher_is_better: true
metadata:
  version: 1
"""

_HELDOUT_YAML = """\
task: story_heldout
dataset_path: json
dataset_kwargs:
  data_files:
    test: story_heldout.jsonl
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{text}}"
num_fewshot: 0
metric_list:
  - metric: word_perplexity
    aggregation: weighted_perplexity
    higher_is_better: false
  - metric: byte_perplexity
    aggregation: weighted_perplexity
    higher_is_better: false
  - metric: bits_per_byte
    aggregation: bits_per_byte
    higher_is_better: false
metadata:
  version: 1
"""


def _cloze_rows(seed: int, first: int, count: int) -> list[dict[str, Any]]:
    """One item per story, kinds in turn."""
    rows: list[dict[str, Any]] = []
    index = first
    while len(rows) < count:
        items = cloze(story(seed, index))
        item = items[index % len(items)]
        rows.append({"id": f"story-{seed}-{index}", **item})
        index += 1
    return rows


def _write_task(folder: str, name: str, definition: str, rows: Iterable[Mapping[str, Any]]) -> None:
    with open(os.path.join(folder, f"{name}.yaml"), "w", encoding="utf-8") as file:
        file.write(definition)
    with open(os.path.join(folder, f"{name}.jsonl"), "w", encoding="utf-8") as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def _check_positive(recipe: Any, name: str) -> None:
    value = getattr(recipe, name)
    if value is not None and value < 1:
        raise ValueError(f"{name}={value} of {recipe.address} is below 1; give a positive number")
