"""Finds near copies in a folder of shards with one tool, on one core, and says what it cost.

    python dedup_tool.py rensa FOLDER RESULT

Imports no more than its tool needs: every peer has an environment of its own. The result is JSON:
`clusters` of ids (the tools that do not verify), or `removed` pairs of removed and kept id.
"""

import io
import json
import os
import re
import resource
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

WORDS = re.compile(r"\w+")
BATCH = 2_000  # documents


def read(folder: str) -> Iterator[tuple[str, str]]:
    """Id and text of every document."""
    import zstandard

    for path in sorted(Path(folder, "documents").glob("*.jsonl.zst")):
        with open(path, "rb") as file:
            stream = zstandard.ZstdDecompressor().stream_reader(file)
            for line in io.TextIOWrapper(stream, encoding="utf-8"):
                row = json.loads(line)
                yield row["id"], row["text"]


def ours(folder: str) -> dict[str, Any]:
    """Deduplicate up to the verified removals, without writing the documents that stay."""
    from marin_dagster.data.documents import shard_paths
    from marin_dagster.data.pipeline import checksum

    context = _Context(folder)
    inputs = [checksum(path) for path in shard_paths(folder)]
    _, numbers = context.recipe.find(context, inputs, [context.recipe.address] * len(inputs))
    return {"numbers": numbers}


def ours_stage(folder: str) -> dict[str, Any]:
    """The whole stage, with the documents that stay and the evidence."""
    context = _Context(folder)
    summary = context.recipe.build(context)
    with open(os.path.join(context.out, "duplicates.jsonl"), encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    return {
        "removed": [(row["removed"], row["kept"]) for row in rows],
        "numbers": dict(summary.numbers),
    }


def rensa(folder: str) -> dict[str, Any]:
    """256 permutations and 32 bands over word 5-grams; which documents share a band with any."""
    from rensa import RMinHash, RMinHashLSH

    lsh = RMinHashLSH(0.75, 256, 32)
    ids: list[str] = []
    flags: list[bool] = []
    for batch in _batches(read(folder)):
        sets = [_ngrams(text) for _, text in batch]
        matrix = RMinHash.digest_matrix_from_token_sets(sets, 256, 42)
        flags += lsh.insert_matrix_and_query_duplicate_flags(matrix, len(ids))
        ids += [name for name, _ in batch]
    return {"flagged": sum(flags), "versions": {"rensa": _version("rensa")}}


def rensa_queries(folder: str) -> dict[str, Any]:
    """The same with a query for every document, which says whom it is like."""
    from rensa import RMinHash, RMinHashLSH

    lsh = RMinHashLSH(0.75, 256, 32)
    ids: list[str] = []
    hashes: list[Any] = []
    for batch in _batches(read(folder)):
        hashes += RMinHash.from_token_sets([_ngrams(text) for _, text in batch], 256, 42)
        ids += [name for name, _ in batch]
    lsh.insert_many(hashes)
    joined = _Sets()
    for number, found in enumerate(lsh.query_all(hashes)):
        joined.join([number, *found])
    return {"clusters": joined.clusters(ids)}


def dupekit(folder: str) -> dict[str, Any]:
    """Marin's defaults: 286 permutations, 26 bands, character 5-grams, seed 42."""
    import dupekit as library
    import pyarrow

    steps = [
        library.Transformation.CleanText("text", "clean"),
        library.Transformation.MinHash("clean", "signature", 286, 5, 42),
        library.Transformation.MinHashLSH("signature", "buckets", 26),
    ]
    ids: list[str] = []
    buckets: dict[tuple[int, int], list[int]] = defaultdict(list)
    for batch in _batches(read(folder)):
        table = pyarrow.RecordBatch.from_pydict({"text": [text for _, text in batch]})
        found = library.transform(table, steps)["buckets"].to_pylist()
        for number, keys in enumerate(found, start=len(ids)):
            for band, key in enumerate(keys):
                buckets[band, key].append(number)
        ids += [name for name, _ in batch]
    joined = _Sets()
    for members in buckets.values():
        joined.join(members)
    versions = {"marin-dupekit": _version("marin-dupekit")}
    return {"clusters": joined.clusters(ids), "versions": versions}


def datatrove(folder: str) -> dict[str, Any]:
    """datatrove's signatures and buckets, 14 x 8 over word 5-grams, with a regular expression."""
    from datatrove.data import Document
    from datatrove.pipeline.dedup.minhash import (
        MinhashConfig,
        MinhashDedupBuckets,
        MinhashDedupSignature,
    )
    from datatrove.utils.word_tokenizers import WordTokenizer

    class Words(WordTokenizer):
        def word_tokenize(self, text: str) -> list[str]:
            return WORDS.findall(text)

        sent_tokenize = span_tokenize = word_tokenize

    config = MinhashConfig(n_grams=5, num_buckets=14, hashes_per_bucket=8)
    ids: list[str] = []

    def documents() -> Iterator[Document]:
        for name, text in read(folder):
            ids.append(name)
            yield Document(text=text, id=name)

    joined = _Sets()
    with tempfile.TemporaryDirectory() as work:
        signature = MinhashDedupSignature(f"{work}/signatures", config, language=Words())
        signature.run(documents(), 0, 1)
        for band in range(14):
            buckets = MinhashDedupBuckets(f"{work}/signatures", f"{work}/pairs", config=config)
            buckets.run(None, band, 14)
        for path in sorted(Path(work, "pairs").iterdir()):
            numbers = memoryview(path.read_bytes()).cast("I")
            for place in range(0, len(numbers), 4):
                joined.join([numbers[place + 1], numbers[place + 3]])
    return {"clusters": joined.clusters(ids), "versions": {"datatrove": _version("datatrove")}}


class _Context:
    """Folders for one build, with one worker."""

    def __init__(self, folder: str):
        from marin_dagster.data.dedup import Deduplicate
        from marin_dagster.data.raw import LocalDocuments
        from marin_dagster.recipe import Placement

        corpus = LocalDocuments(name="corpus", version="dev", paths=(folder,))
        fields: dict[str, Any] = {"name": "out", "version": "dev", "max_removed_share": 1.0}
        self.recipe = Deduplicate(**fields, documents=corpus)
        self.placement = Placement(workers=1)
        self._folder = folder
        self._work = tempfile.TemporaryDirectory(dir=os.environ.get("DEDUP_WORK"))
        self.work, self.out = os.path.join(self._work.name, "work"), self._work.name

    def path(self, _recipe: Any) -> str:
        return self._folder

    def progress(self, *_: Any, **__: Any) -> None: ...

    def log(self, _message: str) -> None: ...


class _Sets:
    """Union-find over numbers."""

    def __init__(self) -> None:
        self._above: dict[int, int] = {}

    def join(self, members: Iterable[int]) -> None:
        first, *rest = map(self._root, members)
        for other in rest:
            self._above[other] = first

    def clusters(self, ids: list[str]) -> list[list[str]]:
        found: dict[int, list[str]] = defaultdict(list)
        for number in sorted(self._above):
            found[self._root(number)].append(ids[number])
        return [members for members in found.values() if len(members) > 1]

    def _root(self, number: int) -> int:
        path = []
        while self._above.setdefault(number, number) != number:
            path.append(number)
            number = self._above[number]
        for passed in path:
            self._above[passed] = number
        return number


def _ngrams(text: str) -> list[str]:
    tokens = WORDS.findall(text.lower())
    return [" ".join(tokens[i : i + 5]) for i in range(max(1, len(tokens) - 4))]


def _batches(rows: Iterable[tuple[str, str]]) -> Iterator[list[tuple[str, str]]]:
    batch = []
    for row in rows:
        batch.append(row)
        if len(batch) == BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


def _version(package: str) -> str:
    from importlib.metadata import version

    return version(package)


def _peak_kilobytes() -> int:
    """Of this program: `ru_maxrss` would count what the process was before it became this one."""
    found = re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())
    return int(found[1]) if found else 0


def main(tool: str, folder: str, result: str) -> None:
    began = time.perf_counter()
    found = globals()[tool](folder)
    found["seconds"] = time.perf_counter() - began
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    found["cpu_seconds"] = sum(part.ru_utime + part.ru_stime for part in usage)
    peaks = [_peak_kilobytes(), usage[1].ru_maxrss]
    found["peak_bytes_by_process"] = [peak * 1024 for peak in peaks]
    found["peak_bytes"] = max(found["peak_bytes_by_process"])
    with open(result, "w", encoding="utf-8") as file:
        json.dump(found, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
