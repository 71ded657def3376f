"""Turns a training step into a process that runs some of them whenever it is asked to.

Standard library only: every peer has an environment of its own. One line of JSON comes in,
`{"steps": 3}`, and one goes out, with seconds, CPU seconds and the peak of the memory so far. What
a library prints goes to the standard error.
"""

import json
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

Start = Callable[[dict[str, Any]], tuple[Callable[[], float], dict[str, Any]]]


def serve(start: Start) -> None:
    """Starts what `start` makes of the sizes in the first argument; answers until the input ends.

    `start` returns a function that does one step to its end and returns its loss, and facts (such
    as versions). The first step is done before the first answer and is timed apart: it compiles.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    began = time.perf_counter()
    step, facts = start(json.loads(sys.argv[1]))
    started = time.perf_counter()
    step()
    facts["start_seconds"] = started - began
    facts["first_step_seconds"] = time.perf_counter() - started
    _answer(answers, facts)
    for request in _requests():
        _answer(answers, _timed(step, request["steps"]))


def tokens_of(sizes: dict[str, Any], batches: int = 4) -> list[list[list[int]]]:
    """A few batches of random rows, one token longer than a row; the same for everyone."""
    import numpy

    rng = numpy.random.default_rng(0)
    shape = (batches, sizes["batch_size"], sizes["seq_len"] + 1)
    return rng.integers(0, sizes["vocab_size"], shape)


def _timed(step: Callable[[], float], steps: int) -> dict[str, float]:
    before, began = time.process_time(), time.perf_counter()
    for _ in range(steps):
        loss = step()
    seconds, cpu = time.perf_counter() - began, time.process_time() - before
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "seconds": seconds / steps,
        "cpu_seconds": cpu / steps,
        "peak_bytes": usage.ru_maxrss * 1024,
        "page_faults": usage.ru_minflt,
        "loss": loss,
    }


def _requests() -> Iterator[dict[str, Any]]:
    for line in sys.stdin:
        yield json.loads(line)


def _answer(answers: Any, body: dict[str, Any]) -> None:
    answers.write(json.dumps(body) + "\n")
    answers.flush()
