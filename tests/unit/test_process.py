"""Families of processes, real ones."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from marin_dagster.failure import Terminated
from marin_dagster.process import ProcessId, descendants, family, process_exists

SLEEP = [sys.executable, "-S", "-c", "import time; time.sleep(600)"]
LEAVE = (  # its child leaves the session and ignores signals, and it ends at once
    "import os, signal, time\n"
    "if os.fork(): os._exit(0)\n"
    "os.setsid()\n"
    "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "time.sleep(600)\n"
)


def await_(condition) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_block_that_fails_leaves_no_process_and_spares_older_ones():
    older = subprocess.Popen(SLEEP)
    before, found = set(descendants(os.getpid())), []

    def fail() -> None:
        with family():
            subprocess.Popen(SLEEP)
            subprocess.run([sys.executable, "-S", "-c", LEAVE], check=True)
            found.extend(set(descendants(os.getpid())) - before)
            raise ValueError("as asked")

    with pytest.raises(ValueError, match="as asked"):
        fail()
    assert len(found) >= 2
    await_(lambda: not any(process_exists(pid) for pid in found))
    assert older.poll() is None
    older.kill()
    older.wait()


def test_sigterm_is_told_apart_from_an_interrupt():
    with pytest.raises(Terminated), family():
        signal.raise_signal(signal.SIGTERM)


def test_a_process_is_known_by_more_than_its_number():
    own = ProcessId.own()
    assert own.lives() is True
    assert replace(own, started="1").lives() is False  # its number was used again
    assert replace(own, boot="earlier").lives() is False  # the machine started again
    assert replace(own, host="elsewhere").lives() is None
    assert replace(own, namespace="pid:[1]").lives() is None  # another container


def test_the_keeper_ends_like_its_command_and_ends_the_rest():
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-S', '-c', {LEAVE!r}])"
    keeper = [sys.executable, "-m", "marin_dagster.launch.keeper", "5", sys.executable, "-S", "-c"]
    assert subprocess.run([*keeper, f"{code}; sys.exit(7)"], check=False).returncode == 7
    killed = f"{code}; import os; os.kill(os.getpid(), 9)"
    assert subprocess.run([*keeper, killed], check=False).returncode == -9


def test_the_tree_below_a_keeper_ends_with_the_keepers_parent():
    code = (
        "import subprocess, sys\n"
        "subprocess.run([sys.executable, '-m', 'marin_dagster.launch.keeper', '5',"
        f" sys.executable, '-S', '-c', {LEAVE + 'time.sleep(1)'!r}])"
    )
    code = code.replace("if os.fork(): os._exit(0)", "if os.fork(): time.sleep(600)")
    parent = subprocess.Popen([sys.executable, "-c", code])
    await_(lambda: len(descendants(parent.pid)) == 3)
    tree = descendants(parent.pid)
    parent.kill()
    parent.wait()
    await_(lambda: not any(process_exists(pid) for pid in tree))
