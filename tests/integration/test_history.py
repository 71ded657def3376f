"""The default history bears many processes at once, from its first moment on."""

import os
import subprocess
import sys

import dagster as dg
import pytest

from tests.dagster_server import DagsterServer, wait_for

RUNS, EVENTS = 16, 200
CODE = f"""
import os, sys, time
import dagster as dg

@dg.asset
def tiny(context):
    for number in range({EVENTS}):
        context.log.info(f"event {{number}}")

open(f"ready-{{os.getpid()}}", "w").close()
while not os.path.exists("go"):
    time.sleep(0.01)
with dg.DagsterInstance.get() as instance:
    sys.exit(not dg.materialize([tiny], instance=instance, raise_on_error=False).success)
"""


@pytest.mark.slow
def test_sixteen_runs_begin_a_history_together_and_none_finds_it_locked(tmp_path):
    server = DagsterServer(tmp_path)  # only its settings: it is not started
    started = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", CODE],
            cwd=tmp_path,
            env=server.environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(RUNS)
    ]
    wait_for(lambda: len([n for n in os.listdir(tmp_path) if n.startswith("ready")]) == RUNS, 300)
    (tmp_path / "go").touch()
    said = [process.communicate()[1] for process in started]
    assert [process.returncode for process in started] == [0] * RUNS, said
    assert not [text for text in said if "locked" in text]
    with server.instance() as instance:
        assert len(instance.get_runs()) == RUNS
        for run in instance.get_runs():
            logs = instance.all_logs(run.run_id)
            assert sum(entry.user_message.startswith("event ") for entry in logs) == EVENTS
            assert run.status == dg.DagsterRunStatus.SUCCESS
