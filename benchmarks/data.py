"""Measures the data stages beside their peers in one run: extraction, near copies, tokens, rows.

    python benchmarks/data.py --levanter levanter/bin/python --rensa rensa/bin/python \
        --pages article-extraction-benchmark trafilatura/tests --text FOLDER

Every tool is a process of its own; each round runs all of them in random order. `extract_ratio`
compares `ExtractText` by CPU time with the library alone that it asks first for a page,
`minhash_ratio` the verified removals of `Deduplicate` with marin-dupekit's clusters,
`tokenize_ratio` a committed token cache with what Hugging Face's `tokenizers` encodes, `read_ratio`
rows as training reads them with Levanter's cache. Higher is better; details are those of the
benchmarks of one stage, `dedup.py` and `tokens.py`. README.md says how to make the environments.
"""

import argparse
import gzip
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import dedup
import tokens

from marin_dagster.data.extractors import is_technical
from marin_dagster.data.warc import decode_html
from marin_dagster.store import Store

ROOT = Path(__file__).resolve().parent.parent
TOOL = ROOT / "benchmarks" / "peers" / "extract_tool.py"
sys.path.append(str(TOOL.parent))
import extract_tool  # noqa: E402

EXTRACT_TOOLS = (("ours", 1), ("chosen", 1), ("ours", 2), ("chosen", 2))
EXTRACT_TOOLS += (("trafilatura", 1), ("resiliparse", 1))
LIBRARIES = ("trafilatura", "resiliparse", "sentencepiece", "tokenizers")

Runs = dict[str, list[dict[str, Any]]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--pages", nargs="+", required=True, help="folders of *.html, *.html.gz")
    parser.add_argument("--num-pages", type=int, default=500)
    parser.add_argument("--text", help="folder of a Documents artifact; stories without it")
    parser.add_argument("--megabytes", type=float, default=30.0, help="of text to tokenize")
    parser.add_argument("--vocab-size", type=int, default=16_384)
    parser.add_argument("--documents", type=int, default=40_000, help="with near copies")
    parser.add_argument("--levanter", required=True, help="a Python with Levanter, marin-dupekit")
    parser.add_argument("--rensa", help="a Python with rensa and zstandard")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        pages = _prepare_pages(os.path.join(folder, "extract"), args)
        os.mkdir(copies := os.path.join(folder, "copies"))
        texts, truth = dedup.make_corpus(copies, args)
        os.mkdir(cache := os.path.join(folder, "tokens"))
        size = tokens.prepare(cache, args)
        runs = _run_rounds(folder, args)
    extracted = _summarize_extraction(pages, runs["extract"])
    copied = dedup.summarize(args, texts, truth, runs["copies"])
    tokenized = tokens.summarize(args, size, runs["tokens"])
    ratios = {
        "extract_ratio": extracted.pop("extract_ratio"),
        "minhash_ratio": copied.pop("minhash_ratio"),
        "tokenize_ratio": round(tokenized.pop("tokenize_ratio"), 3),
        "read_ratio": round(tokenized.pop("read_ratio"), 3),
    }
    about = {
        "date": f"{date.today()}",
        "cores": len(os.sched_getaffinity(0)),
        "rounds": args.rounds,
        "versions": {name: version(name) for name in LIBRARIES},
    }
    details = {"extraction": extracted, "near_copies": copied, "tokens": tokenized}
    print(json.dumps({**ratios, **about, **details}))


def _run_rounds(folder: str, args: argparse.Namespace) -> Mapping[str, Runs]:
    """Runs every tool of every stage once per round, in an order of its own."""
    jobs = list(_jobs(folder, args))
    runs: dict[str, Runs] = defaultdict(lambda: defaultdict(list))
    for number in range(args.rounds):
        for stage, name, run in random.Random(number).sample(jobs, len(jobs)):
            found = run()
            runs[stage][name].append(found)
            spent = {key: round(found[key], 2) for key in ("seconds", "cpu_seconds")}
            print(stage, name, spent, file=sys.stderr, flush=True)
    return runs


def _jobs(
    folder: str, args: argparse.Namespace
) -> Iterator[tuple[str, str, Callable[[], dict[str, Any]]]]:
    for tool, workers in EXTRACT_TOOLS:
        run = partial(_extract, tool, os.path.join(folder, "extract"), workers)
        yield "extract", f"{tool}_{workers}", run
    finders = {"ours": sys.executable, "dupekit": args.levanter}
    if args.rensa:
        finders |= {"rensa": args.rensa}
    for tool, python in finders.items():
        yield "copies", tool, partial(dedup.run_tool, tool, python, os.path.join(folder, "copies"))
    for tool, workers in tokens.tools_of(args.levanter):
        python = args.levanter if tool == "levanter_rows" else sys.executable
        place = os.path.join(folder, "tokens")
        run = partial(tokens.run_tool, python, tool, place, args.vocab_size, workers)
        yield "tokens", f"{tool}_{workers}", run


# ---- extraction


def _prepare_pages(folder: str, args: argparse.Namespace) -> dict[str, Any]:
    """Writes a sample of the pages, by the library that suits them, and a crawl of them."""
    found = sorted(path for place in args.pages for path in Path(place).rglob("*.htm*"))
    if not found:
        raise SystemExit(f"--pages {args.pages}: no *.html or *.html.gz there; name other folders")
    chosen = random.Random(args.seed).sample(found, min(args.num_pages, len(found)))
    counts, size = dict.fromkeys(("article", "technical"), 0), 0
    for number, path in enumerate(chosen):
        body = path.read_bytes()
        if path.suffix == ".gz":
            body = gzip.decompress(body)
        kind = "technical" if is_technical(decode_html(body, "text/html")[0]) else "article"
        place = Path(folder, extract_tool.PAGES, kind)
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{number:05d}.html").write_bytes(body)
        counts[kind], size = counts[kind] + 1, size + len(body)
    store = Store(os.path.join(folder, extract_tool.STORE))
    store.build(extract_tool.recipe(folder).pages)
    return {"pages": counts, "megabytes": round(size / 1e6, 1)}


def _extract(tool: str, folder: str, workers: int) -> dict[str, Any]:
    """What a tool of `peers/extract_tool.py` finds, in a process of its own."""
    with tempfile.NamedTemporaryFile(suffix=".json") as result:
        command = [sys.executable, "-W", "ignore", str(TOOL), tool, folder, f"{workers}"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [*command, result.name], env=environment, capture_output=True, text=True
        )
        if done.returncode:
            raise SystemExit(f"{command} failed:\n{done.stderr[-2000:]}")
        return json.load(open(result.name))


def _summarize_extraction(
    pages: Mapping[str, Any], runs: Mapping[str, Sequence[Mapping[str, Any]]]
) -> dict[str, Any]:
    def ratio(ours: str, theirs: str, field: str) -> float:
        pairs = zip(runs[ours], runs[theirs], strict=True)
        return round(statistics.median(other[field] / one[field] for one, other in pairs), 3)

    count = sum(pages["pages"].values())
    tools = {}
    for name, found in runs.items():
        middle = {f: statistics.median(run[f] for run in found) for f in ("seconds", "cpu_seconds")}
        tools[name] = {
            **{field: round(value, 2) for field, value in middle.items()},
            "documents": found[-1]["documents"],
            "pages_per_second": round(count / middle["seconds"], 1),
            "megabytes_per_second": round(pages["megabytes"] / middle["seconds"], 2),
        }
    return {
        "extract_ratio": ratio("ours_1", "chosen_1", "cpu_seconds"),
        "extract_ratio_wall": {n: ratio(f"ours_{n}", f"chosen_{n}", "seconds") for n in (1, 2)},
        "trafilatura_ratio": ratio("ours_1", "trafilatura_1", "cpu_seconds"),
        "resiliparse_ratio": ratio("ours_1", "resiliparse_1", "cpu_seconds"),
        **pages,
        "tools": tools,
    }


if __name__ == "__main__":
    main()
