"""A real `dagster dev` with its daemon, for tests: its own port, history and store."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import dagster as dg
import yaml

from marin_dagster.process import adopt_orphans, descendants, send
from tests.servers import free_port

ROOT = Path(__file__).resolve().parent.parent
READY_SECONDS = 120.0
T = TypeVar("T")


def wait_for(condition: Callable[[], T | None], seconds: float, what: str = "") -> T:
    """Returns the first true value of a condition that is polled; fails after `seconds`."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.1)
    raise AssertionError(f"not within {seconds:g} s: {what or condition}")


class DagsterServer:
    """`dagster dev` over the repository's `dagster.yaml`, with monitors that look more often.

    Used as a context manager. `environment` reaches the code; what runs from `folder` and has it,
    shares history and store with the server. A folder that has a `dagster.yaml` keeps it.
    """

    def __init__(
        self, folder: Path, concurrent_runs: int = 4, pool_limit: int = 1, **environment: str
    ):
        self.folder = folder
        self.prefix = environment.get("MARIN_PREFIX", str(folder / "store"))
        self.url = f"http://127.0.0.1:{free_port()}"
        self.environment = {
            **os.environ,
            "DAGSTER_HOME": str(folder),
            "MARIN_PREFIX": self.prefix,
            "MARIN_DAGSTER_URL": self.url,
            "NO_PROXY": "127.0.0.1,localhost",
            "PYTHONWARNINGS": "ignore",
            **environment,
        }
        self._process: subprocess.Popen | None = None
        self._log = folder / ".dagster" / "server.log"
        self._log.parent.mkdir(exist_ok=True)
        if not (folder / "dagster.yaml").exists():
            _write_settings(folder, concurrent_runs, pool_limit)

    def __enter__(self) -> "DagsterServer":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Starts the webserver, the daemon and the code server; returns when they answer."""
        adopt_orphans()  # so that whatever it leaves behind is found at the end
        port = self.url.rpartition(":")[2]
        with open(self._log, "ab") as log:
            words = ("-w", "workspace.yaml", "-h", "127.0.0.1", "-p", port)
            self._process = self.command("dagster", "dev", *words, stdout=log)
        wait_for(self._answers, READY_SECONDS, f"dagster dev, see {self._log}")

    def command(self, program: str, *words: str, stdout: Any = subprocess.PIPE) -> subprocess.Popen:
        """Starts a command of the virtual environment in the server's folder and environment."""
        return subprocess.Popen(
            [str(Path(sys.executable).with_name(program)), *words],
            cwd=self.folder,
            env=self.environment,
            stdout=stdout,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Ends the whole tree: by itself, or by force after a while."""
        if self._process is None:
            return
        tree = [self._process.pid, *descendants(self._process.pid)]
        send(tree, number)
        deadline = time.monotonic() + 10.0
        while time.monotonic() < deadline and any(_lives(pid) for pid in tree):
            self._process.poll()
            time.sleep(0.1)
        send([pid for pid in tree if _lives(pid)], signal.SIGKILL)
        self._process.wait()
        self._process = None

    @property
    def processes(self) -> list[int]:
        """Everything that runs below `dagster dev`."""
        return descendants(self._process.pid) if self._process else []

    def ask(self, query: str, **variables: Any) -> dict[str, Any]:
        """The data that GraphQL answers."""
        body = json.dumps({"query": query, "variables": variables}).encode()
        request = urllib.request.Request(
            f"{self.url}/graphql", body, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            found = json.load(answer)
        assert "errors" not in found, found["errors"]
        return found["data"]

    def instance(self) -> dg.DagsterInstance:
        """The history that the server writes."""
        return dg.DagsterInstance.from_config(str(self.folder))

    def materialize(self, stage: str, key: str, **tags: str) -> str:
        """Launches a run of one partition, as the UI does; returns its id."""
        pairs = {"dagster/partition": key, **tags}
        found = self.ask(
            LAUNCH,
            params={
                "selector": {
                    **LOCATION,
                    "pipelineName": "__ASSET_JOB",
                    "assetSelection": [{"path": [stage]}],
                },
                "mode": "default",
                "executionMetadata": {
                    "tags": [{"key": name, "value": value} for name, value in pairs.items()]
                },
            },
        )["launchPipelineExecution"]
        assert found["__typename"] == "LaunchRunSuccess", found
        return found["run"]["runId"]

    def terminate(self, run_id: str) -> None:
        """Presses Terminate."""
        self.ask(TERMINATE, run=run_id)

    def backfill(self, stage: str, keys: list[str]) -> str:
        """Launches a backfill of some partitions of an asset; returns its id."""
        found = self.ask(
            BACKFILL,
            params={"assetSelection": [{"path": [stage]}], "partitionNames": keys},
        )["launchPartitionBackfill"]
        assert found["__typename"] == "LaunchBackfillSuccess", found
        return found["backfillId"]

    def cancel_backfill(self, backfill: str) -> None:
        self.ask(CANCEL_BACKFILL, backfill=backfill)

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self._log.read_text()[-4000:]
        try:
            nodes = self.ask(READY)["repositoriesOrError"].get("nodes", [])
            return bool(nodes) and "id" in self.ask(DAEMONS)["instance"]
        except OSError:
            return False


LOCATION = {
    "repositoryLocationName": "marin",
    "repositoryName": "__repository__",
}
READY = "{ repositoriesOrError { ... on RepositoryConnection { nodes { name } } } }"
DAEMONS = "{ instance { id daemonHealth { id } } }"
LAUNCH = """
mutation($params: ExecutionParams!) {
  launchPipelineExecution(executionParams: $params) {
    __typename
    ... on LaunchRunSuccess { run { runId } }
    ... on PythonError { message }
    ... on RunConfigValidationInvalid { errors { message } }
  }
}"""
TERMINATE = """
mutation($run: String!) { terminateRun(runId: $run) { __typename ... on PythonError { message } } }
"""
BACKFILL = """
mutation($params: LaunchBackfillParams!) {
  launchPartitionBackfill(backfillParams: $params) {
    __typename
    ... on LaunchBackfillSuccess { backfillId }
    ... on PythonError { message }
  }
}"""
CANCEL_BACKFILL = """
mutation($backfill: String!) { cancelPartitionBackfill(backfillId: $backfill) { __typename } }
"""


def _write_settings(folder: Path, concurrent_runs: int, pool_limit: int) -> None:
    settings = yaml.safe_load((ROOT / "dagster.yaml").read_text())
    settings["storage"]["custom"]["config"]["base_dir"] = str(folder / "history")
    settings["local_artifact_storage"]["config"]["base_dir"] = str(folder / "history")
    settings["compute_logs"]["config"]["base_dir"] = str(folder / "logs")
    settings["run_monitoring"] |= {
        "poll_interval_seconds": 2,
        "free_slots_after_run_end_seconds": 1,
    }
    settings["concurrency"]["runs"]["max_concurrent_runs"] = concurrent_runs
    settings["concurrency"]["pools"]["default_limit"] = pool_limit
    (folder / "dagster.yaml").write_text(yaml.safe_dump(settings))
    shutil.copy(ROOT / "workspace.yaml", folder)


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
