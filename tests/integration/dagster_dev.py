"""A real `dagster dev` with its daemon, in a folder, a store and an instance of its own."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 300


def wait_for(condition: Callable[[], Any], what: str, seconds: float = 400) -> Any:
    """Returns the first true value of a condition; fails after `seconds`."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.5)
    raise AssertionError(f"not within {seconds} s: {what}")


class DagsterDev:
    """Started by `with`; ends everything that it and its runs have started."""

    def __init__(self, folder: Path, **environment: str):
        self.folder, self.prefix = folder, str(folder / "store")
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            self.port = found.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.environment = {
            **os.environ,
            "MARIN_PREFIX": self.prefix,
            "MARIN_DAGSTER_URL": self.url,
            **environment,
        }
        self.environment["DAGSTER_HOME"] = str(folder)
        settings = (ROOT / "dagster.yaml").read_text()
        # an evaluation beside a training takes a second place in the pool; everything runs at once
        (folder / "dagster.yaml").write_text(
            settings.replace("default_limit: 1", "default_limit: 2").replace(
                "max_concurrent_runs: 4", "max_concurrent_runs: 8"
            )
        )
        shutil.copy(ROOT / "workspace.yaml", folder)

    def __enter__(self) -> "DagsterDev":
        log = open(self.folder / "dagster-dev.log", "wb")
        self.process = self.start("dagster", "dev", "-p", str(self.port), stdout=log)
        wait_for(self._answers, f"dagster dev at {self.url}", START_SECONDS)
        return self

    def __exit__(self, *_: Any) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(30)
        finally:
            for pid in self._ours():
                os.kill(pid, signal.SIGKILL)
            self.process.wait()

    def start(self, program: str, *words: str, stdout: Any = subprocess.PIPE) -> subprocess.Popen:
        """Starts a command of the virtual environment beside it."""
        return subprocess.Popen(
            [str(Path(sys.executable).with_name(program)), *words],
            cwd=self.folder,
            env=self.environment,
            stdout=stdout,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def ask(self, query: str, **variables: Any) -> Any:
        """The data of a GraphQL answer."""
        body = json.dumps({"query": query, "variables": variables}).encode()
        request = urllib.request.Request(
            f"{self.url}/graphql", body, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as response:
            answer = json.load(response)
        assert "errors" not in answer, answer["errors"]
        return answer["data"]

    def _answers(self) -> bool:
        assert self.process.poll() is None, (self.folder / "dagster-dev.log").read_text()[-3000:]
        try:
            return bool(self.ask("{ workspaceOrError { __typename } }"))
        except (urllib.error.URLError, ConnectionError):
            return False

    def _ours(self) -> list[int]:
        """Processes that have this store in their environment."""
        mark = f"MARIN_PREFIX={self.prefix}".encode()
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            try:
                if mark in path.read_bytes().split(b"\0"):
                    found.append(int(path.parent.name))
            except OSError:  # gone, or of somebody else
                continue
        return found
