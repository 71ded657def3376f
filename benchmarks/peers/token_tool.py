"""Does one tool's share of `tokens.py`: `token_tool.py TOOL FOLDER VOCAB_SIZE WORKERS RESULT`.

FOLDER holds a store with documents, a tokenizer and a token cache. Levanter's Python has nothing of
this project, so nothing of it is imported outside the tools that need it.
"""

import glob
import itertools
import json
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

ROWS, SEQ_LEN = 8, 512  # of a batch that is read
READING_SECONDS = 3.0
BATCH_CHARACTERS = 1_000_000
STORE = "store"


def main(tool: str, folder: str, vocab_size: int, workers: int, result: str) -> None:
    found = TOOLS[tool](folder, vocab_size, workers)
    Path(result).write_text(json.dumps(found))


def _timed(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    before, began = _cpu_seconds(), time.perf_counter()
    found = work()
    cpu, seconds = _cpu_seconds() - before, time.perf_counter() - began
    return {**found, "seconds": seconds, "cpu_seconds": cpu}


def _cpu_seconds() -> float:
    every = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in every)


# ---- documents to tokens


def ours(folder: str, vocab_size: int, workers: int) -> dict[str, Any]:
    """The whole stage: from the documents of an artifact to a token cache that is committed."""
    from token_recipes import token_recipe

    from marin_dagster.recipe import Placement
    from marin_dagster.store import Store

    store, recipe = Store(os.path.join(folder, STORE)), token_recipe(folder, vocab_size)

    def work() -> dict[str, Any]:
        made = store.build(recipe, force=True, placement=Placement(workers=workers))
        return {"tokens": made.record.summary.numbers["tokens"]}

    return _timed(work)


def hugging_face(folder: str, vocab_size: int, workers: int) -> dict[str, Any]:
    """`tokenizers` over the same documents, in batches as large as ours; ids are not kept."""
    os.environ["RAYON_NUM_THREADS"] = str(workers)
    from tokenizers import Tokenizer

    [path] = _files(folder, "tokenizers", "tokenizer.json")
    tokenizer = Tokenizer.from_file(path)

    def work() -> dict[str, Any]:
        tokens = 0
        for batch in _batches(_texts(folder)):
            found = tokenizer.encode_batch_fast(batch, add_special_tokens=False)
            tokens += sum(len(one.ids) + 2 for one in found)
        return {"tokens": tokens}

    return _timed(work)


def _texts(folder: str) -> Iterator[str]:
    import zstandard

    for path in _files(folder, "raw", "*.jsonl.zst"):
        with zstandard.open(path, "rt", encoding="utf-8") as file:
            for line in file:
                yield json.loads(line)["text"]


def _batches(texts: Iterator[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    for text in texts:
        batch.append(text)
        if sum(map(len, batch)) >= BATCH_CHARACTERS:
            yield batch
            batch = []
    if batch:
        yield batch


# ---- rows of tokens


def our_rows(folder: str, vocab_size: int, workers: int) -> dict[str, Any]:
    """Rows in random order, with targets, weights and documents, as training reads them."""
    from marin_dagster.data.mixture import Rows
    from marin_dagster.data.token_cache import TokenCacheReader

    meta = _files(folder, "tokenized", "cache.json")[-1]
    rows = Rows(TokenCacheReader(os.path.dirname(meta)), SEQ_LEN)

    def read(batch: Sequence[int]) -> None:
        for index in batch:
            rows.row(index)

    return _read_rows(read, rows.num_rows)


def levanter_rows(folder: str, vocab_size: int, workers: int) -> dict[str, Any]:
    """Rows of the same tokens in Levanter's cache, which this writes first; tokens alone."""
    import asyncio

    from levanter.data.text.datasets import TokenSeqDataset
    from levanter.store.cache import SerialCacheWriter, TreeCache

    meta = _files(folder, "tokenized", "cache.json")[-1]
    cache, exemplar = os.path.join(folder, "levanter"), {"input_ids": np.zeros(0, np.int32)}
    if not os.path.exists(cache):
        offsets = np.fromfile(os.path.join(os.path.dirname(meta), "offsets.bin"), "<i8")
        width = json.loads(Path(meta).read_text())["id_type"]
        tokens = np.fromfile(os.path.join(os.path.dirname(meta), "tokens.bin"), width)
        with SerialCacheWriter(cache, exemplar) as writer:
            for start in range(0, len(offsets) - 1, 1024):
                edges = offsets[start : start + 1025]
                writer.write_batch(
                    [
                        {"input_ids": tokens[a:b].astype(np.int32)}
                        for a, b in itertools.pairwise(edges)
                    ]
                )
    dataset = TokenSeqDataset(TreeCache.load(cache, exemplar), SEQ_LEN)
    loop = asyncio.new_event_loop()

    def read(batch: Sequence[int]) -> None:
        loop.run_until_complete(dataset.get_batch([int(index) for index in batch]))

    return _read_rows(read, loop.run_until_complete(dataset.async_len()))


def _read_rows(read: Callable[[Sequence[int]], None], num_rows: int) -> dict[str, Any]:
    order = np.random.default_rng(0)
    read(order.integers(0, num_rows, ROWS))

    def work() -> dict[str, Any]:
        batches, until = 0, time.perf_counter() + READING_SECONDS
        while time.perf_counter() < until:
            read(order.integers(0, num_rows, ROWS).tolist())
            batches += 1
        return {"rows": batches * ROWS, "tokens": batches * ROWS * SEQ_LEN}

    return _timed(work)


def _files(folder: str, stage: str, name: str) -> list[str]:
    found = glob.glob(os.path.join(folder, STORE, stage, "**", name), recursive=True)
    return sorted(path for path in found if "/.work/" not in path)


TOOLS = {
    "ours": ours,
    "hugging_face": hugging_face,
    "our_rows": our_rows,
    "levanter_rows": levanter_rows,
}

if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
