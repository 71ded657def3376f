"""No process of ours is forked: it would inherit JAX and other threads in an unknown state."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("marin_dagster", "assets", "jobs", "resources")
FILES = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
SAFE = ("spawn", "forkserver")
ALONE = (  # have one thread and open nothing before they start their only child: it may set up
    "marin_dagster/launch/keeper.py",
    "marin_dagster/launch/slurm_rank.py",
)


def forks(tree: ast.AST) -> Iterator[str]:
    """Calls that fork, or that leave the way to start a process to the platform."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        last = name.rpartition(".")[2]
        given = {word.arg for word in node.keywords}
        first = node.args[0].value if node.args and isinstance(node.args[0], ast.Constant) else None
        if name in ("os.fork", "os.forkpty", "pty.fork"):
            yield name
        if last in ("get_context", "set_start_method") and first not in SAFE:
            yield f"{name}({first!r})"
        if last == "ProcessPoolExecutor" and "mp_context" not in given:
            yield f"{name} without mp_context"
        if name in ("multiprocessing.Process", "multiprocessing.Pool", "mp.Process", "mp.Pool"):
            yield name
        if "preexec_fn" in given:
            yield f"{name} with preexec_fn"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_no_module_forks(path):
    allowed = (
        ["subprocess.Popen with preexec_fn"] if path.relative_to(ROOT).as_posix() in ALONE else []
    )
    assert list(forks(ast.parse(path.read_text()))) == allowed


@pytest.mark.parametrize(
    "code",
    [
        "os.fork()",
        "multiprocessing.get_context('fork')",
        "multiprocessing.get_context()",
        "ProcessPoolExecutor(4)",
        "multiprocessing.Pool(2)",
        "subprocess.Popen(command, preexec_fn=f)",
    ],
)
def test_a_fork_is_found(code):
    assert list(forks(ast.parse(code)))
