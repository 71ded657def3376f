"""Turns a training step into a process that runs some of them whenever it is asked to.

Standard library and NumPy only: every peer has an environment of its own. One line of JSON comes
in and one goes out: `{"steps": 3}` is answered with the last loss, seconds, CPU seconds and the
peak of the memory so far, `{"evaluate": true}` with the loss on the held-out rows. What a library
prints goes to the standard error.
"""

import itertools
import json
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np


class Peer(NamedTuple):
    """Somebody's training."""

    step: Callable[[np.ndarray], float]  # reads rows, returns their loss when it is done
    facts: dict[str, Any]
    evaluate: Callable[[np.ndarray], float] | None = None  # the mean loss of rows, in nats


def serve(start: Callable[[dict[str, Any]], Peer]) -> None:
    """Starts what `start` makes of the sizes in the first argument; answers until the input ends.

    The first step is done before the first answer and is timed apart: it compiles.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    sizes = json.loads(sys.argv[1])
    began = time.perf_counter()
    peer = start(sizes)
    batches = _batches(sizes)
    started = time.perf_counter()
    peer.step(next(batches))
    peer.facts["start_seconds"] = started - began
    peer.facts["first_step_seconds"] = time.perf_counter() - started
    _answer(answers, peer.facts)
    for line in sys.stdin:
        request = json.loads(line)
        if "steps" in request:
            _answer(answers, _timed(peer.step, batches, request["steps"]))
        else:
            rows = np.load(sizes["held_out"])
            parts = rows.reshape(-1, sizes["batch_size"], rows.shape[1])
            losses = [peer.evaluate(part) for part in parts]
            _answer(answers, {"loss": sum(losses) / len(losses)})


def _batches(sizes: dict[str, Any]) -> Iterator[np.ndarray]:
    """The rows of a file in its order, or a few batches of random ones, again and again."""
    if "rows" in sizes:
        rows = np.load(sizes["rows"])
    elif "vocab_size" in sizes:
        shape = (4 * sizes["batch_size"], sizes["seq_len"])
        rows = np.random.default_rng(0).integers(0, sizes["vocab_size"], shape, np.int32)
    else:
        rows = np.zeros((1, 1), np.int32)  # a matmul reads none
    return itertools.cycle(rows.reshape(-1, sizes.get("batch_size", 1), rows.shape[1]))


def _timed(step: Callable[[np.ndarray], float], batches: Iterator, steps: int) -> dict[str, float]:
    before, began = time.process_time(), time.perf_counter()
    for _ in range(steps):
        loss = step(next(batches))
    seconds, cpu = time.perf_counter() - began, time.process_time() - before
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "seconds": seconds / steps,
        "cpu_seconds": cpu / steps,
        "peak_bytes": usage.ru_maxrss * 1024,
        "loss": loss,
    }


def _answer(answers: Any, body: dict[str, Any]) -> None:
    answers.write(json.dumps(body) + "\n")
    answers.flush()
