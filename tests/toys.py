"""Small recipes that the tests of the machinery build."""

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from marin_dagster.kinds import Documents
from marin_dagster.recipe import Context, Counts, Recipe, StageError, Summary


@dataclass(frozen=True, kw_only=True)
class Words(Documents):
    """Writes its words, one a line."""

    stage: ClassVar[str] = "raw"
    words: tuple[str, ...]

    def build(self, ctx: Context) -> Summary:
        Path(ctx.out, "words.txt").write_text("".join(f"{word}\n" for word in self.words))
        counts = Counts(unit="words", read=len(self.words), kept=len(self.words))
        return Summary(numbers={"words": len(self.words)}, counts=counts)


@dataclass(frozen=True, kw_only=True)
class Upper(Documents):
    """Writes the words of its input in capitals; `misbehave` says how it fails, if it does."""

    stage: ClassVar[str] = "text"
    documents: Documents
    suffix: str = ""
    misbehave: str = ""

    def build(self, ctx: Context) -> Summary:
        words = Path(ctx.path(self.documents), "words.txt").read_text().split()
        target = Path(ctx.out, "words.txt")
        target.write_text(words[0] if words else "")
        if self.misbehave == "raise":
            raise StageError("diverged", "as asked")
        if self.misbehave == "kill":
            os.kill(os.getpid(), 9)
        if self.misbehave == "slow":
            time.sleep(1.0)
        target.write_text("".join(f"{word.upper()}{self.suffix}\n" for word in words))
        lost = 1 if self.misbehave == "lose" else 0
        counts = Counts(unit="words", read=len(words), kept=len(words) - lost)
        ctx.progress(len(words), len(words), "words")
        return Summary(numbers={"words": len(words)}, counts=counts)


@dataclass(frozen=True, kw_only=True)
class Joined(Documents):
    """Writes all its inputs in one file."""

    stage: ClassVar[str] = "deduped"
    parts: tuple[Documents, ...]

    def build(self, ctx: Context) -> Summary:
        text = "".join(Path(ctx.path(part), "words.txt").read_text() for part in self.parts)
        Path(ctx.out, "words.txt").write_text(text)
        return Summary(numbers={"words": len(text.split())})


def road(version: str = "dev", **changes) -> Recipe:
    """words → capitals → joined, a diamond with legs of different length."""
    words = Words(name="toy", version=version, words=("one", "two"))
    upper = Upper(name="toy", version=version, documents=words, **changes)
    return Joined(name="toy", version=version, parts=(upper, words))


@dataclass(frozen=True, kw_only=True)
class Slow(Documents):
    """Runs in a worker for `seconds`, or ends it in the way asked for."""

    stage: ClassVar[str] = "checkpoints"
    accelerated: ClassVar[bool] = True
    documents: Documents
    seconds: float = 0.2
    ending: str = ""

    def build(self, ctx: Context) -> Summary:
        words = Path(ctx.path(self.documents), "words.txt").read_text()
        started = time.monotonic()
        ctx.log(f"worker process {os.getpid()}")
        while time.monotonic() - started < self.seconds:
            done = time.monotonic() - started
            metrics = {"train/loss": 2.0 / (1 + done), "train/grad_norm": 1.0, "tokens": 100 * done}
            ctx.progress(done, self.seconds, "seconds", **metrics)
            time.sleep(0.05)
        if self.ending == "raise":
            raise StageError("diverged", "loss is not finite at step 3")
        if self.ending == "kill":
            os.kill(os.getpid(), 9)
        if self.ending == "leave":
            os._exit(0)
        Path(ctx.out, "words.txt").write_text(words)
        return Summary(numbers={"process": os.getpid()})


@dataclass(frozen=True, kw_only=True)
class Meeting(Documents):
    """Waits until the build named `other` is under way too; both lie at the same prefix."""

    stage: ClassVar[str] = "filtered"
    documents: Documents
    other: str
    ending: str = ""

    def build(self, ctx: Context) -> Summary:
        folder = Path(os.environ["MARIN_PREFIX"]).with_suffix(".meeting")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / self.name).write_text(str(os.getpid()))
        ctx.log(f"waits for {self.other}")
        deadline = time.monotonic() + 60
        while not (folder / self.other).exists():
            assert time.monotonic() < deadline, f"{self.other} never came"
            ctx.progress(1, 2, "sides")
            time.sleep(0.02)
        if self.ending == "kill":
            os.kill(os.getpid(), 9)
        words = Path(ctx.path(self.documents), "words.txt").read_text()
        Path(ctx.out, "words.txt").write_text(words)
        return Summary(numbers={"process": os.getpid()})


def meeting(version: str) -> tuple[Recipe, ...]:
    """Builds that succeed only side by side, one whose process dies then, and a lonely one."""
    words = Words(name="toy", version=version, words=("one", "two"))
    made = {"name": "meeting", "version": version, "documents": words}
    left, right = (
        Meeting(**{**made, "name": name}, other=other)
        for name, other in (("left", "right"), ("right", "left"))
    )
    doomed = Meeting(**{**made, "name": "doomed"}, other="partner", ending="kill")
    partner = Meeting(**{**made, "name": "partner"}, other="doomed")
    lonely = Meeting(**{**made, "name": "lonely"}, other="nobody")
    return Joined(name="meeting", version=version, parts=(left, right)), doomed, partner, lonely


VERSIONS = ("dev", "2026.01.01", "2026.02.03")


def experiment(version: str) -> tuple[Recipe, ...]:
    """The toy experiment that the tests register as a user's package would."""
    joined = road(version)
    training = Slow(name="toy", version=version, documents=joined)
    return joined, training, *(meeting(version) if version == "dev" else ())
