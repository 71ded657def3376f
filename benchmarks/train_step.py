"""Times our training step on a CPU beside Levanter's, transformers' and the limit of the machine.

    python benchmarks/train_step.py --levanter ../levanter/bin/python --experts 8

Every candidate is a process that lives for the whole run and does two steps when it is asked to, of
which the second counts, in random order; README.md says how to make the environments of the peers.
All train in float32 with AdamW and clipped gradients on random tokens. Ours has the environment of
our worker, the peers have what their users have.
"""

import argparse
import contextlib
import json
import os
import random
import statistics
import sys
from typing import Any

from candidate import Candidate

from resources.launcher import CPU_MEMORY

SIZES = {
    "vocab_size": 8192,
    "hidden_dim": 256,
    "num_layers": 4,
    "num_heads": 4,
    "num_kv_heads": 4,
    "head_dim": 64,
    "seq_len": 512,
    "batch_size": 8,
    "num_steps": 1000,  # of the schedule
    "learning_rate": 3e-4,
    "torch_experts": "grouped_mm",
}
EXPERTS = {
    8: {"num_experts": 8, "num_experts_per_token": 2, "expert_dim": 512, "num_shared_experts": 1},
    32: {"num_experts": 32, "num_experts_per_token": 4, "expert_dim": 256, "num_shared_experts": 2},
}
QUIET = 0.05  # of the machine's time for others, at most, while a sample is taken
ENOUGH = 5  # quiet samples of each candidate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--levanter", help="the Python of Levanter's environment")
    parser.add_argument("--torch", default=sys.executable, help="a Python with transformers")
    parser.add_argument("--experts", type=int, choices=EXPERTS, default=8)
    parser.add_argument("--rounds", type=int, default=30, help="at most, until all were quiet")
    args = parser.parse_args()
    sizes = {**SIZES, **EXPERTS[args.experts]}
    with contextlib.ExitStack() as stack:
        candidates = {
            name: stack.enter_context(Candidate(*command))
            for name, command in _commands(args, sizes).items()
        }
        samples = _interleave(candidates, args.rounds)
        print(json.dumps(_result(sizes, candidates, samples)))


def _commands(args: argparse.Namespace, sizes: dict[str, Any]):
    """Python, script, argument and extra environment of every candidate."""
    ours = sys.executable
    commands = {
        "ours": (ours, "our_step.py", sizes, CPU_MEMORY),
        "ours_plain_malloc": (ours, "our_step.py", sizes, {}),
        "torch": (args.torch, "torch_step.py", sizes, {}),
        "matmul_jax": (ours, "matmul_peak.py", {"library": "jax"}, {}),
        "matmul_torch": (args.torch, "matmul_peak.py", {"library": "torch"}, {}),
    }
    if args.levanter:
        commands["levanter"] = (args.levanter, "levanter_step.py", sizes, {})
    return commands


def _interleave(candidates: dict[str, Candidate], rounds: int) -> dict[str, list[dict[str, Any]]]:
    """Asks all in random order, round after round, until each has enough quiet samples."""
    samples: dict[str, list[dict[str, Any]]] = {name: [] for name in candidates}
    order = random.Random(0)
    for number in range(rounds):
        names = list(candidates)
        order.shuffle(names)
        for name in names:
            candidates[name].sample()  # whoever has waited finds nothing of its own in the caches
            samples[name].append(candidates[name].sample())
        if min(len(_quiet(taken)) for taken in samples.values()) >= ENOUGH:
            break
        print(f"round {number + 1}", {name: _line(samples[name][-1]) for name in names}, flush=True)
    return samples


def _line(sample: dict[str, Any]) -> str:
    return f"{sample['seconds']:.2f} s, others {sample['others']:.0%}"


def _quiet(samples: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [sample for sample in samples if sample["others"] <= QUIET]


def _used(samples: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The quiet samples; where they are too few, the least disturbed ones."""
    return max(_quiet(samples), sorted(samples, key=lambda one: one["others"])[:ENOUGH], key=len)


def _result(sizes, candidates, samples) -> dict[str, Any]:
    tokens = sizes["batch_size"] * sizes["seq_len"]
    median = {
        name: statistics.median(sample["seconds"] for sample in _used(taken))
        for name, taken in samples.items()
    }
    peak = max(
        candidates[name].facts["flops_per_step"] / median[name]
        for name in ("matmul_jax", "matmul_torch")
    )
    flops = candidates["ours"].facts["flops_per_token"] * tokens
    result: dict[str, Any] = {
        "sizes": sizes,
        "flops_per_step": flops,
        "matmul_peak_flops_per_second": peak,
        "peak_fraction": flops / median["ours"] / peak,
        "torch_ratio": median["torch"] / median["ours"],
        "allocator_ratio": median["ours_plain_malloc"] / median["ours"],
        "compile_seconds": candidates["ours"].facts["first_step_seconds"] - median["ours"],
        "memory_ratio": _peak_bytes(samples["ours"]) / _peak_bytes(samples["torch"]),
        "cores": os.cpu_count(),
    }
    if "levanter" in median:
        result["levanter_ratio"] = median["levanter"] / median["ours"]
    result["candidates"] = {
        name: {
            "seconds": median[name],
            **({} if name.startswith("matmul") else {"tokens_per_second": tokens / median[name]}),
            "cpu_seconds": statistics.median(sample["cpu_seconds"] for sample in _used(taken)),
            "peak_bytes": _peak_bytes(taken),
            "samples": len(taken),
            "quiet_samples": len(_quiet(taken)),
            "others_share": statistics.median(sample["others"] for sample in _used(taken)),
            **candidates[name].facts,
        }
        for name, taken in samples.items()
    }
    return result


def _peak_bytes(samples: list[dict[str, Any]]) -> int:
    return samples[-1]["peak_bytes"]


if __name__ == "__main__":
    main()
