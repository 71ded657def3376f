"""A deployment whose history lies in a real PostgreSQL server, as the how-to describes it."""

import os
import pwd
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import dagster as dg
import pytest

from tests.integration.test_docs import FILES

PAGE = "docs/how-to/run-for-a-team.md"
BUILD = "from marin_dagster.cli import main; main()"


def programs() -> Path:
    """The folder of the newest PostgreSQL of this machine."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    on_path = shutil.which("initdb")
    assert found or on_path, "install PostgreSQL: apt-get install postgresql"
    return found[-1].parent if found else Path(on_path or "").parent


@pytest.fixture
def postgres() -> Iterator[str]:
    """The address of an empty database in a server of its own."""
    folder, bin = Path(tempfile.mkdtemp(prefix="marin-postgres-")), programs()
    user = "postgres" if os.getuid() == 0 else pwd.getpwuid(os.getuid()).pw_name
    prefix = ["runuser", "-u", user, "--"] if os.getuid() == 0 else []  # it refuses to run as root
    if prefix:
        shutil.chown(folder, user)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def run(program: str, *words: str) -> None:
        done = subprocess.run([*prefix, bin / program, *words], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr

    data, options = str(folder / "data"), f"-p {port} -k {folder} -c fsync=off"
    run("initdb", "-D", data, "-U", "marin", "--auth=trust", "-N")
    run("pg_ctl", "-D", data, "-l", f"{folder}/log", "-o", options, "-w", "start")
    try:
        run("createdb", "-h", "127.0.0.1", "-p", str(port), "-U", "marin", "marin")
        yield f"postgresql+psycopg2://marin@127.0.0.1:{port}/marin"
    finally:
        run("pg_ctl", "-D", data, "-m", "immediate", "-w", "stop")
        shutil.rmtree(folder)


@pytest.fixture
def home(tmp_path, prefix, postgres, monkeypatch) -> Path:
    (block,) = [found for found in FILES if found.page == PAGE]
    folder = tmp_path / "home"
    folder.mkdir()
    (folder / "dagster.yaml").write_text(block.text)
    monkeypatch.setenv("MARIN_POSTGRES_URL", postgres)
    monkeypatch.setenv("DAGSTER_HOME", str(folder))
    return folder


def build(target: str) -> subprocess.CompletedProcess:
    words = [sys.executable, "-W", "ignore", "-c", BUILD, "build", target, "--run"]
    return subprocess.run(words, capture_output=True, text=True, timeout=300)


def test_builds_of_several_processes_share_one_history(home):
    with dg.DagsterInstance.from_config(str(home)) as instance:
        assert not instance.get_runs()  # the first to open it makes the tables, as the guide says
    targets = ("deduped/toy@2026.01.01", "text/toy@2026.02.03", "raw/toy@dev")
    with ThreadPoolExecutor() as threads:
        done = list(threads.map(build, targets))
    assert [one.returncode for one in done] == [0, 0, 0], "\n".join(one.stderr for one in done)
    with dg.DagsterInstance.from_config(str(home)) as instance:
        assert type(instance.run_storage).__name__ == "PostgresRunStorage"
        runs = instance.get_runs()
        made = {run.tags["marin/artifact"] for run in runs if "marin/artifact" in run.tags}
        materialized = instance.get_materialized_partitions(dg.AssetKey("text"))
    assert {run.status for run in runs} == {dg.DagsterRunStatus.SUCCESS}
    assert {"deduped/toy__2026.01.01", "text/toy__2026.02.03", "raw/toy__dev"} <= made
    assert materialized == {"toy@2026.01.01", "toy@2026.02.03"}
    assert not (home / "history").exists()
