"""Measures Deduplicate beside other tools for near copies: speed, recall, false removals, memory.

    python benchmarks/dedup.py --rensa rensa/bin/python --dupekit levanter/bin/python

Makes a corpus from a seed: stories, or pieces of the documents of an artifact, with near copies
planted at known similarity, by words replaced at random. Every tool reads the same shards in a
process of its own on one core, in turns; speeds are by CPU time, imports included. README.md says
how to make the environments of the peers.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from marin_dagster.data.documents import DocumentWriter, new_document, read_documents
from marin_dagster.data.stories import story
from marin_dagster.data.words import jaccard, ngram_hashes, word_hashes, words

ROOT = Path(__file__).resolve().parent.parent
TOOL = ROOT / "benchmarks" / "peers" / "dedup_tool.py"
TARGETS = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0)  # similarity of a copy, in turn
BINS = (0.45, 0.55, 0.65, 0.75, 0.8, 0.85, 0.9, 0.95, 1.0)  # lower edges
COPIES = 0.15  # of all documents
PIECE = 250  # words
MIN_SIMILARITY = 0.75
SEEN = 100  # members of a cluster that a removed one is compared with


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, default=60_000)
    parser.add_argument("--text", help="folder of a Documents artifact; stories without it")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rensa", help="a Python with rensa and zstandard")
    parser.add_argument("--datatrove", help="a Python with datatrove and xxhash below 4")
    parser.add_argument("--dupekit", help="a Python with marin-dupekit and zstandard")
    parser.add_argument("--only", help="tools, with commas between them")
    args = parser.parse_args()
    tools = {"ours": sys.executable, "ours_stage": sys.executable}
    if args.datatrove:
        tools["datatrove"] = args.datatrove
    if args.rensa:
        tools |= {"rensa": args.rensa, "rensa_queries": args.rensa}
    if args.dupekit:
        tools["dupekit"] = args.dupekit
    if args.only:
        tools = {name: python for name, python in tools.items() if name in args.only.split(",")}
    with tempfile.TemporaryDirectory() as folder:
        texts, truth = make_corpus(folder, args)
        runs: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for number in range(args.rounds):
            for name in random.Random(number).sample(list(tools), len(tools)):
                runs[name].append(run_tool(name, tools[name], folder))
                print(name, {k: runs[name][-1][k] for k in ("seconds", "cpu_seconds")}, flush=True)
    print(json.dumps(summarize(args, texts, truth, runs)))


def make_corpus(
    folder: str, args: argparse.Namespace
) -> tuple[dict[str, str], list[tuple[str, str, float]]]:
    """Writes the corpus; returns its texts by id, and planted pairs with their true similarity."""
    rng = random.Random(args.seed)
    bases = list(_base_texts(args, round(args.documents * (1 - COPIES))))
    vocabulary = " ".join(rng.sample(bases, min(len(bases), 200))).split()
    copies = [
        (base, _edited(rng, base, TARGETS[number % len(TARGETS)], vocabulary))
        for number, base in enumerate(
            rng.sample(bases, min(len(bases), args.documents - len(bases)))
        )
    ]
    texts = [*bases, *(copy for _, copy in copies)]
    rng.shuffle(texts)
    documents = [new_document(text, source="benchmark") for text in texts]
    with DocumentWriter(folder, shard_documents=5_000) as writer:
        for document in documents:
            writer.write(document)
    ids = {document["text"]: document["id"] for document in documents}
    truth = [(ids[one], ids[other], similarity(one, other)) for one, other in copies]
    return {name: text for text, name in ids.items()}, truth


def similarity(one: str, other: str) -> float:
    """Jaccard similarity of word 5-grams."""
    return 1.0 if one == other else jaccard(_grams(one), _grams(other))


@lru_cache(maxsize=50_000)
def _grams(text: str) -> np.ndarray:
    return np.unique(ngram_hashes(word_hashes(words(text)), 5))


def _base_texts(args: argparse.Namespace, count: int) -> Iterator[str]:
    if not args.text:
        for number in range(count):
            pair = story(args.seed, 2 * number), story(args.seed, 2 * number + 1)
            yield "\n\n".join(one.text for one in pair)
        return
    seen: set[tuple[str, ...]] = set()
    for document in read_documents(args.text):
        tokens = document["text"].split(" ")
        for start in range(0, len(tokens) - PIECE // 2, PIECE):
            piece = tokens[start : start + PIECE]
            if len(seen) < count and tuple(piece) not in seen:
                seen.add(tuple(piece))
                yield " ".join(piece)


def _edited(rng: random.Random, text: str, target: float, vocabulary: Sequence[str]) -> str:
    """Words replaced so that about the target share of 5-grams is common; at 1, other case."""
    if target == 1:
        return text.upper().replace(" ", "\n")
    kept = (2 * target / (1 + target)) ** (1 / 5)
    parts = (token if rng.random() < kept else rng.choice(vocabulary) for token in text.split(" "))
    return " ".join(parts)


def run_tool(tool: str, python: str, folder: str) -> dict[str, Any]:
    """What a tool of `peers/dedup_tool.py` finds, in a process of its own on one core."""
    single = dict.fromkeys(("RAYON_NUM_THREADS", "OMP_NUM_THREADS", "ARROW_NUM_THREADS"), "1")
    environment = {**os.environ, **single, "PYTHONPATH": str(ROOT)}
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        command = [python, "-W", "ignore", str(TOOL), tool, folder, file.name]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{command} failed:\n{done.stderr[-2000:]}")
        return json.load(open(file.name))


def summarize(
    args: argparse.Namespace,
    texts: Mapping[str, str],
    truth: Sequence[tuple[str, str, float]],
    runs: Mapping[str, Sequence[Mapping[str, Any]]],
) -> dict[str, Any]:
    """Ratios, medians and the quality of what the tools found in all rounds."""
    megabytes = sum(len(text.encode()) for text in texts.values()) / 1e6
    tools = {}
    for name, found in runs.items():
        cpu = statistics.median(run["cpu_seconds"] for run in found)
        tools[name] = {
            "cpu_seconds": round(cpu, 2),
            "seconds": round(statistics.median(run["seconds"] for run in found), 2),
            "documents_per_second": round(len(texts) / cpu),
            "megabytes_per_second": round(megabytes / cpu, 2),
            "peak_megabytes": round(max(run["peak_bytes"] for run in found) / 1e6),
            "peak_by_process": [
                round(bytes_ / 1e6) for bytes_ in found[-1]["peak_bytes_by_process"]
            ],
            **{
                key: found[-1][key]
                for key in ("versions", "numbers", "flagged")
                if key in found[-1]
            },
            **_quality(found[-1], texts, truth),
        }
    result = {
        "documents": len(texts),
        "megabytes": round(megabytes, 1),
        "text": "an artifact" if args.text else "stories",
        "planted": len(truth),
        "rounds": args.rounds,
        "tools": tools,
    }
    if "ours" in tools:
        ratios = {
            f"{'minhash' if name == 'dupekit' else name}_ratio": round(
                tools[name]["cpu_seconds"] / tools["ours"]["cpu_seconds"], 2
            )
            for name in ("dupekit", "rensa", "datatrove")
            if name in tools
        }
        result |= ratios
    return result


def _quality(
    found: Mapping[str, Any],
    texts: Mapping[str, str],
    truth: Sequence[tuple[str, str, float]],
) -> dict[str, Any]:
    """Recall by similarity, and removed documents that are like none that could justify it."""
    if "removed" in found:
        gone = {removed for removed, _ in found["removed"]}
        caught = [one in gone or other in gone for one, other, _ in truth]
        pairs = [(removed, [kept]) for removed, kept in found["removed"]]
    elif "clusters" in found:
        cluster = {name: number for number, c in enumerate(found["clusters"]) for name in c}
        caught = [
            one in cluster and cluster[one] == cluster.get(other, -1) for one, other, _ in truth
        ]
        pairs = [
            (removed, [name for name in members[:SEEN] if name != removed])
            for members in found["clusters"]
            for removed in dict.fromkeys(members[1:])
        ]
    else:
        return {}
    by_bin: dict[float, list[bool]] = defaultdict(list)
    for (*_, true), hit in zip(truth, caught, strict=True):
        by_bin[max((edge for edge in BINS if edge <= true), default=0.0)].append(hit)
    best = [
        max((similarity(texts[removed], texts[other]) for other in others), default=1.0)
        for removed, others in pairs
    ]
    above = [hit for (*_, true), hit in zip(truth, caught, strict=True) if true >= 0.8]
    return {
        "recall": {f"{edge}": round(statistics.mean(by_bin[edge]), 4) for edge in sorted(by_bin)},
        "pairs": {f"{edge}": len(by_bin[edge]) for edge in sorted(by_bin)},
        "recall_at_0.8": round(statistics.mean(above), 4),
        "removed": len(best),
        "false_removals": {
            f"below_{limit}": round(sum(value < limit for value in best) / max(1, len(best)), 5)
            for limit in (0.5, MIN_SIMILARITY)
        },
    }


if __name__ == "__main__":
    main()
