"""Times tokenizing and the reading of tokens beside Hugging Face's tokenizers and Levanter's cache.

    python benchmarks/tokens.py --levanter levanter/bin/python --text store/text/site/dev/data

`ours` is the whole stage: it reads documents, encodes, writes a token cache, reads it back and
commits; Hugging Face's tokenizer encodes the same documents with the tokenizer that we export, and
keeps nothing. Rows are read in random order from the memory of the system: ours with targets,
weights and documents, Levanter's as tokens alone. Every tool is a process of its own, in turns.
"""

import argparse
import itertools
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

from marin_dagster.data.documents import read_documents
from marin_dagster.data.stories import story
from marin_dagster.store import Store

ROOT = Path(__file__).resolve().parent.parent
PEERS = ROOT / "benchmarks" / "peers"
sys.path.append(str(PEERS))
from token_recipes import INPUT, STORE, token_recipe  # noqa: E402

TOOL = PEERS / "token_tool.py"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--text", help="folder of a Documents artifact; stories without it")
    parser.add_argument("--megabytes", type=float, default=30.0)
    parser.add_argument("--vocab-size", type=int, default=2_048)
    parser.add_argument("--levanter", help="the Python of Levanter's environment")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    tools = tools_of(args.levanter)
    runs: dict[str, list[dict[str, Any]]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        size = prepare(folder, args)
        for number in range(args.rounds):
            for tool, workers in random.Random(number).sample(tools, len(tools)):
                python = args.levanter if tool == "levanter_rows" else sys.executable
                found = run_tool(python, tool, folder, args.vocab_size, workers)
                runs[f"{tool}_{workers}"].append(found)
                print(tool, workers, found, file=sys.stderr)
    print(json.dumps(summarize(args, size, runs)))


def tools_of(levanter: str | None) -> list[tuple[str, int]]:
    """What is measured: tools and their workers."""
    tools = [("ours", 1), ("hugging_face", 1), ("ours", 2), ("hugging_face", 2), ("our_rows", 1)]
    return [*tools, ("levanter_rows", 1)] if levanter else tools


def prepare(folder: str, args: argparse.Namespace) -> int:
    """Writes the documents and builds what the tools read; returns the bytes of text."""
    size = 0
    with open(os.path.join(folder, INPUT), "w") as file:
        for text in _texts(args.text):
            size += len(text.encode())
            file.write(json.dumps({"text": text}) + "\n")
            if size > args.megabytes * 1e6:
                break
    recipe = token_recipe(folder, args.vocab_size)
    store = Store(os.path.join(folder, STORE))
    for one in (recipe.documents, recipe.tokenizer, recipe):
        store.build(one)
    return size


def _texts(folder: str | None) -> Iterator[str]:
    if folder:
        return (document["text"] for document in read_documents(folder))
    return ("\n\n".join(story(1, 8 * n + i).text for i in range(8)) for n in itertools.count())


def run_tool(python: str, tool: str, folder: str, vocab_size: int, workers: int) -> dict[str, Any]:
    """What a tool of `peers/token_tool.py` finds, in a process of its own."""
    with tempfile.NamedTemporaryFile(suffix=".json") as result:
        words = (tool, folder, str(vocab_size), str(workers), result.name)
        command = [python, "-W", "ignore", str(TOOL), *words]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{command} failed:\n{done.stderr[-2000:]}")
        return json.load(open(result.name))


def summarize(args: argparse.Namespace, size: int, runs: dict[str, list[Any]]) -> dict[str, Any]:
    """Ratios and medians of what the tools, named `tool_workers`, found in all rounds."""

    def median(name: str, field: str) -> float:
        return statistics.median(run[field] for run in runs[name])

    def ratio(ours: str, theirs: str, field: str) -> float:
        """How much faster ours is, round by round; rows are counted per second."""
        pairs = zip(runs[ours], runs[theirs], strict=True)
        return statistics.median(
            (one["tokens"] / one[field]) / (other["tokens"] / other[field]) for one, other in pairs
        )

    rows = {}
    for name in ("our_rows_1", "levanter_rows_1"):
        if name in runs:
            rows[name] = median(name, "rows") / median(name, "seconds")
    result = {
        "date": f"{date.today()}",
        "megabytes": size / 1e6,
        "vocab_size": args.vocab_size,
        "tokenize_ratio": ratio("ours_1", "hugging_face_1", "cpu_seconds"),
        "tokenize_ratio_wall": {
            workers: ratio(f"ours_{workers}", f"hugging_face_{workers}", "seconds")
            for workers in (1, 2)
        },
        "rows_per_second": rows,
        "tools": {
            name: {field: median(name, field) for field in ("seconds", "cpu_seconds", "tokens")}
            for name in runs
        },
    }
    if "levanter_rows_1" in rows:
        result["read_ratio"] = ratio("our_rows_1", "levanter_rows_1", "seconds")
    return result


if __name__ == "__main__":
    main()
