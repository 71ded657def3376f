"""Times what grows with the number of recipes: loading, planning, the partition page, a launch.

    python benchmarks/graph_scale.py --recipes 10000

Makes an experiment of that many small recipes in a temporary folder and starts `dagster dev`.
"""

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EXPERIMENT = """
from marin_dagster.data.dedup import Deduplicate
from marin_dagster.data.examples import ExampleDocuments

VERSIONS = ("dev",)

def experiment(version):
    made = []
    for number in range({chains}):
        of = {{"name": f"scale-{{number}}", "version": "2026.01.01"}}
        examples = ExampleDocuments(**of, label="story", seed=number, num_documents=10)
        made.append(Deduplicate(**of, documents=examples))
    return tuple(made)
"""
LOAD = """
import json, time
import dagster
start = time.perf_counter()
from marin_dagster.definitions import defs
defs.get_repository_def()
loaded = time.perf_counter()
from marin_dagster.environment import read_environment
from marin_dagster.experiments import catalog
from marin_dagster.plan import plan
from marin_dagster.targets import resolve
plan(read_environment().store(), resolve(["deduped/scale-7@2026.01.01"]), known=catalog().values())
print(json.dumps({"recipes": len(catalog()), "load_seconds": loaded - start,
                  "plan_seconds": time.perf_counter() - loaded}))
"""
PAGE = """query Page($key: AssetKeyInput!) { assetNodeOrError(assetKey: $key) { ... on AssetNode {
  partitionKeys assetPartitionStatuses { __typename ... on DefaultPartitionStatuses {
    materializedPartitions failedPartitions materializingPartitions } } } } }"""
LAUNCH = """mutation Launch($params: ExecutionParams!) { launchPipelineExecution(
  executionParams: $params) { __typename ... on LaunchRunSuccess { run { runId status } }
  ... on PythonError { message } } }"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recipes", type=int, default=10_000)
    recipes = parser.parse_args().recipes
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        environment = _laboratory(Path(folder), recipes // 2)
        found = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", LOAD],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        result = json.loads(found.stdout)
        result.update(_served(Path(folder), environment))
    print(json.dumps(result))


def _laboratory(folder: Path, chains: int) -> dict[str, str]:
    """Writes the experiment, its entry point and an instance; returns the environment for them."""
    info = folder / "scale_lab-0.0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: scale-lab\nVersion: 0.0.1\n")
    (info / "entry_points.txt").write_text("[marin_dagster.experiments]\nscale = scale_lab\n")
    (folder / "scale_lab.py").write_text(EXPERIMENT.format(chains=chains))
    for name in ("dagster.yaml", "workspace.yaml"):
        (folder / name).write_text((ROOT / name).read_text())
    path = os.pathsep.join([str(folder), str(ROOT)])
    return {**os.environ, "PYTHONPATH": path, "MARIN_PREFIX": str(folder / "store")}


def _served(folder: Path, environment: dict[str, str]) -> dict[str, float]:
    """Seconds that `dagster dev` takes to load, to answer for a partition page, and to launch."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    started = time.perf_counter()
    server = subprocess.Popen(
        [sys.executable, "-m", "dagster", "dev", "-p", str(port)],
        cwd=folder,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    url = f"http://127.0.0.1:{port}/graphql"
    key = {"key": {"path": ["deduped"]}}
    try:
        while not _answers(url, key):
            time.sleep(0.5)
        ready = time.perf_counter()
        times = []
        for _ in range(5):
            _ask(url, PAGE, key)
            times.append(time.perf_counter())
        launch = _ask(url, LAUNCH, {"params": _one_key("raw", "scale-7@2026.01.01")})
        done = time.perf_counter()
    finally:
        os.killpg(server.pid, signal.SIGKILL)
    if launch["launchPipelineExecution"]["__typename"] != "LaunchRunSuccess":
        raise SystemExit(f"the launch was refused: {launch}")
    return {
        "dev_seconds": ready - started,
        "page_seconds": (times[-1] - ready) / len(times),
        "launch_seconds": done - times[-1],
    }


def _one_key(asset: str, partition: str) -> dict:
    return {
        "selector": {
            "repositoryLocationName": "marin",
            "repositoryName": "__repository__",
            "pipelineName": "__ASSET_JOB",
            "assetSelection": [{"path": [asset]}],
        },
        "runConfigData": {},
        "mode": "default",
        "executionMetadata": {"tags": [{"key": "dagster/partition", "value": partition}]},
    }


def _answers(url: str, variables: dict) -> bool:
    try:
        found = _ask(url, PAGE, variables)
    except OSError:
        return False
    return bool(found["assetNodeOrError"].get("partitionKeys"))


def _ask(url: str, query: str, variables: dict) -> dict:
    body = json.dumps({"query": query, "variables": variables}).encode()
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as answer:
        found = json.load(answer)
    if found.get("errors"):
        raise SystemExit(f"the query failed: {found['errors']}")
    return found["data"]


if __name__ == "__main__":
    main()
