"""Compares what our mixture of experts and Levanter's learn from the same tokens.

    python benchmarks/learning.py --levanter ../levanter/bin/python

All read the same rows of made-up stories once, in the same order, with models of one shape.
Levanter's is the hero's architecture with its recommended schedule and learning rate, with Adam and
with Muon. Ours are the hero's architecture with Muon at the same size of updates, and the standard
mixture with Muon and with the optimizer of the quickstart. The result holds the loss on stories
that nobody trained on.
"""

import argparse
import itertools
import json
import math
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from candidate import Candidate

from marin_dagster.data.stories import HELD_OUT, story
from marin_dagster.data.tokenizer import SentencePieceTokenizer, TextTokenizer, train_model
from resources.launcher import CPU_MEMORY

SIZES = {
    "vocab_size": 2048,
    "hidden_dim": 128,
    "num_layers": 4,
    "num_heads": 4,
    "num_kv_heads": 2,
    "head_dim": 32,
    "expert_dim": 128,
    "num_experts": 8,
    "num_experts_per_token": 2,
    "num_shared_experts": 1,
    "seq_len": 256,
    "batch_size": 8,
}
HELD_OUT_ROWS = 64
TOKENIZER_STORIES = 2_000
QUICKSTART_RATE = 6e-3  # of its AdamW
REPORTS = 6  # of the training loss, along the way


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--levanter", help="the Python of Levanter's environment")
    parser.add_argument("--steps", type=int, default=160)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        sizes = {**SIZES, "num_steps": args.steps, **_write_rows(Path(folder), args.steps)}
        rate = hero_learning_rate(sizes)
        ours, muon = (sys.executable, "our_step.py"), {"optimizer": "muon"}
        hero = {**sizes, "model": "hero"}
        results = {"ours_standard": _learn(*ours, sizes, QUICKSTART_RATE)}
        results["ours_standard_muon"] = _learn(*ours, {**sizes, **muon}, rate)
        results["ours_hero_muon"] = _learn(*ours, {**hero, **muon}, rate)
        if args.levanter:
            levanter = (args.levanter, "levanter_step.py")
            results["levanter_adam"] = _learn(*levanter, sizes, rate)
            results["levanter_muon"] = _learn(*levanter, {**sizes, **muon}, rate)
    tokens = args.steps * sizes["batch_size"] * sizes["seq_len"]
    print(json.dumps({"tokens": tokens, **_difference(results), **results}))


def _difference(results: dict[str, Any]) -> dict[str, float]:
    """The best held-out loss of ours less the best of theirs."""
    best = {
        side: min(
            (found["held_out"] for name, found in results.items() if name.startswith(side)),
            default=math.nan,
        )
        for side in ("ours", "levanter")
    }
    return {"ours_minus_theirs": best["ours"] - best["levanter"]}


def hero_learning_rate(sizes: dict[str, Any]) -> float:
    """Levanter's rule for Adam's learning rate: 0.0876 · T^-0.346 · d^-0.345 · √(tokens a step)."""
    per_step = sizes["batch_size"] * sizes["seq_len"]
    tokens = per_step * sizes["num_steps"]
    return 0.087571 * tokens**-0.3461 * sizes["hidden_dim"] ** -0.3448 * math.sqrt(per_step)


def _write_rows(folder: Path, steps: int) -> dict[str, str]:
    """Writes the rows that all read, in their order, and those that nobody trains on."""
    texts = (story(1, index).text for index in range(TOKENIZER_STORIES))
    tokenizer = SentencePieceTokenizer(train_model(texts, SIZES["vocab_size"]))
    paths = {"rows": folder / "rows.npy", "held_out": folder / "held_out.npy"}
    for (name, path), first in zip(paths.items(), (0, HELD_OUT), strict=True):
        count = steps * SIZES["batch_size"] if name == "rows" else HELD_OUT_ROWS
        needed = count * SIZES["seq_len"]
        tokens = itertools.islice(_tokens(tokenizer, first), needed)
        np.save(path, np.fromiter(tokens, np.int32, needed).reshape(count, -1))
    return {name: str(path) for name, path in paths.items()}


def _tokens(tokenizer: TextTokenizer, first: int) -> Iterator[int]:
    for index in itertools.count(first):
        yield from tokenizer.encode(story(1, index).text)
        yield tokenizer.eos_id


def _learn(python: str, script: str, sizes: dict[str, Any], rate: float) -> dict[str, Any]:
    """Trains to the end; returns losses, and CPU seconds per step."""
    extra = CPU_MEMORY if script == "our_step.py" else {}
    with Candidate(python, script, {**sizes, "learning_rate": rate}, extra) as one:
        left, losses, cpu_seconds = sizes["num_steps"] - 1, [], 0.0
        while left:
            steps = min(left, math.ceil(sizes["num_steps"] / REPORTS))
            found = one.sample(steps)
            cpu_seconds += found["cpu_seconds"] * steps
            left -= steps
            losses.append(round(found["loss"], 4))
            print(script, losses, flush=True)
        return {
            "held_out": one.ask({"evaluate": True})["loss"],
            "train_losses": losses,
            "learning_rate": rate,
            "cpu_seconds_per_step": cpu_seconds / (sizes["num_steps"] - 1),
            **one.facts,
        }


if __name__ == "__main__":
    main()
