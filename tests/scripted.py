"""Recipes that do what a file says, so that a test can steer them in another process."""

import os
import resource
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from marin_dagster.kinds import Documents
from marin_dagster.recipe import Context, Counts, Recipe, StageError, Summary

FOLDER = "TOY_SCRIPTS"  # environment variable: where the scripts lie
BEAT = (
    "import os, signal, sys, time\n"
    "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
    "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "os.setsid()\n"
    "while True:\n"
    "    open(sys.argv[1], 'w').write(str(time.time()))\n"
    "    time.sleep(0.1)\n"
)


@dataclass(frozen=True)
class Scripts:
    """The test's side: writes scripts and reads what happened."""

    folder: Path

    def write(self, address: str, script: str) -> None:
        """Sets what the build at `address` does: see `play`."""
        self._file(address, "script").write_text(script)

    def starts(self, address: str) -> int:
        """How often a build at `address` has begun."""
        path = self._file(address, "starts")
        return len(path.read_text()) if path.exists() else 0

    def go(self, address: str) -> None:
        """Lets a build that waits go on."""
        self._file(address, "go").touch()

    def beats(self, address: str) -> list[float]:
        """When each grandchild of the build gave its last sign of life."""
        paths = sorted(self.folder.glob(f"{_name(address)}.beat*"))
        return [float(path.read_text() or 0) for path in paths]

    def _file(self, address: str, kind: str) -> Path:
        return self.folder / f"{_name(address)}.{kind}"


def play(ctx: Context) -> None:
    """Does the words of the build's script, one after the other.

    `first`: the rest is for the first start only. `children`: starts two grandchildren that leave
    the session and ignore signals. `deaf`: ignores them too. `wait`: until the test says go.
    `silent`: says nothing for an hour. `memory`: takes more than it may. `exit:3`, `signal:9`,
    `raise:diverged`: ends so. `say:20`: sends so many messages.
    """
    scripts = Scripts(Path(os.environ[FOLDER]))
    address = ctx.recipe.address
    with scripts._file(address, "starts").open("a") as file:
        file.write("x")
    script = scripts._file(address, "script")
    for word in script.read_text().split() if script.exists() else ():
        what, _, value = word.partition(":")
        if what == "first" and scripts.starts(address) > 1:
            return
        if what == "children":
            _start_grandchildren(scripts, address)
        if what == "deaf":
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while what == "wait" and not scripts._file(address, "go").exists():
            ctx.progress(1, 2, "words")
            time.sleep(0.05)
        if what == "silent":
            time.sleep(3600)
        if what == "memory":
            resource.setrlimit(resource.RLIMIT_AS, (2**32, resource.RLIM_INFINITY))
            bytearray(2**33)
        if what == "say":
            for number in range(int(value)):
                ctx.log(f"message {number}")
                time.sleep(0.05)
        if what == "exit":
            print("last words", flush=True)
            os._exit(int(value))
        if what == "signal":
            os.kill(os.getpid(), int(value))
            time.sleep(3600)
        if what == "raise":
            raise StageError(value, "as asked")


def _start_grandchildren(scripts: Scripts, address: str) -> None:
    for number in range(2):
        beat = scripts._file(address, f"beat{number}")
        start = f"subprocess.Popen([sys.executable, '-c', {BEAT!r}, {str(beat)!r}])"
        code = f"import subprocess, sys; {start}"  # its parent ends at once
        subprocess.run([sys.executable, "-c", code], check=True)
        while not beat.exists():
            time.sleep(0.02)


def _name(address: str) -> str:
    return address.replace("/", "-")


@dataclass(frozen=True, kw_only=True)
class Scripted(Documents):
    """Plays its script, then writes a word."""

    documents: tuple[Documents, ...] = ()

    def build(self, ctx: Context) -> Summary:
        play(ctx)
        Path(ctx.out, "words.txt").write_text("word\n")
        return Summary(numbers={"words": 1}, counts=Counts(unit="words", read=1, kept=1))


@dataclass(frozen=True, kw_only=True)
class ScriptedRaw(Scripted):
    stage: ClassVar[str] = "raw"


@dataclass(frozen=True, kw_only=True)
class ScriptedText(Scripted):
    stage: ClassVar[str] = "text"


@dataclass(frozen=True, kw_only=True)
class ScriptedFiltered(Scripted):
    stage: ClassVar[str] = "filtered"


@dataclass(frozen=True, kw_only=True)
class ScriptedDeduped(Scripted):
    stage: ClassVar[str] = "deduped"


@dataclass(frozen=True, kw_only=True)
class ScriptedCheckpoint(Scripted):
    """Plays its script in a worker."""

    stage: ClassVar[str] = "checkpoints"
    accelerated: ClassVar[bool] = True


VERSIONS = ("dev",)
MANY = [f"many-{number:02d}" for number in range(12)]


def experiment(version: str) -> tuple[Recipe, ...]:
    """A chain of four stages, twelve that stand alone, and two that run in a worker."""
    raw = ScriptedRaw(name="chain", version=version)
    text = ScriptedText(name="chain", version=version, documents=(raw,))
    filtered = ScriptedFiltered(name="chain", version=version, documents=(text,))
    last = ScriptedDeduped(name="chain", version=version, documents=(filtered,))
    many = [ScriptedRaw(name=name, version=version) for name in MANY]
    workers = [ScriptedCheckpoint(name=name, version=version) for name in ("one", "two")]
    return last, *many, *workers
