"""Turns a script of `peers` into a process that does a step when it is asked to."""

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PEERS = Path(__file__).resolve().parent / "peers"


class Candidate:
    """A step of somebody's in a process of its own; `facts` is what it says of itself.

    Its first step, which compiles, is done when this returns.
    """

    def __init__(self, python: str, script: str, argument: dict[str, Any], extra: dict[str, str]):
        kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        self._process = subprocess.Popen(
            [python, "-W", "ignore", str(PEERS / script), json.dumps(argument)],
            env={**kept, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", **extra},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.facts = self._answer()

    def __enter__(self) -> "Candidate":
        return self

    def __exit__(self, *_: Any) -> None:
        self._process.kill()
        self._process.wait()

    def sample(self, steps: int = 1) -> dict[str, Any]:
        """Seconds and CPU seconds of a step, and the share of the machine that others took."""
        before, began = _busy_seconds(), time.perf_counter()
        found = self.ask({"steps": steps})
        seconds = time.perf_counter() - began
        theirs = _busy_seconds() - before - found["cpu_seconds"] * steps
        return {**found, "others": max(0.0, theirs) / (seconds * (os.cpu_count() or 1))}

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Sends a request and waits for its answer; see `peers/serve.py`."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self._process.args} ended with code {self._process.wait()}")
        return json.loads(line)


def _busy_seconds() -> float:
    """CPU seconds that this machine has worked since it started, stolen ones too."""
    user, nice, system, _, _, irq, softirq, steal = map(
        int, Path("/proc/stat").read_text().split("\n")[0].split()[1:9]
    )
    busy = user + nice + system + irq + softirq + steal
    return busy / os.sysconf("SC_CLK_TCK")
