"""Runs `dagster dev`, webserver and daemon, for whoever looks at it through a browser."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
START_SECONDS = 180  # a slow first import
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # loopback needs no proxy


@contextlib.contextmanager
def dagster_dev(port: int, environment: Mapping[str, str], log: Path | None) -> Iterator[str]:
    """Runs it in the repository root; yields its address, once it answers; leaves nothing."""
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", port)) == 0:
            raise RuntimeError(f"port {port} is in use; choose another")
    with contextlib.ExitStack() as stack:
        out = stack.enter_context(open(log, "wb")) if log else None
        server = subprocess.Popen(
            [sys.executable, "-m", "dagster", "dev", "-p", str(port)],
            cwd=ROOT,
            env={**environment, "NO_PROXY": "127.0.0.1,localhost"},
            stdout=out,
            stderr=subprocess.STDOUT if out else None,
            start_new_session=True,
        )
        stack.callback(_stop, server)
        url = f"http://127.0.0.1:{port}"
        _await_answer(f"{url}/server_info", server, log)
        yield url


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _stop(server: subprocess.Popen) -> None:
    """Ends the whole session: the code server outlives a parent that is killed."""
    _signal(server, signal.SIGINT)
    with contextlib.suppress(subprocess.TimeoutExpired):
        server.wait(timeout=30)
    _signal(server, signal.SIGKILL)
    server.wait()


def _signal(server: subprocess.Popen, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(server.pid, number)


def _await_answer(url: str, server: subprocess.Popen, log: Path | None) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise RuntimeError(f"dagster dev ended with exit code {server.returncode}; log: {log}")
        with contextlib.suppress(urllib.error.URLError, OSError):
            DIRECT.open(url, timeout=5).close()
            return
        time.sleep(0.3)
    raise RuntimeError(f"dagster dev did not answer at {url} in {START_SECONDS} s; log: {log}")
