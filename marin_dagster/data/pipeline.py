"""Turns the shards of one artifact into shards of Documents, in worker processes.

Each shard ends as one output shard and one ledger that adds up: read = kept + dropped + errors.
Workers run datatrove pipelines. A shard that was finished before a kill is not done again; a
shard that was not finished leaves nothing that could be taken for complete.
"""

import contextlib
import hashlib
import itertools
import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from marin_dagster.data.documents import SUFFIX, Document, shard_paths
from marin_dagster.recipe import Context, Counts, Placement, StageError

MAX_EXAMPLES = 5
JOB_FILE = "job.pickle"
_POLL_SECONDS = 0.05
_LOG_TAIL_BYTES = 2000
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS")  # of a worker

Checksum = tuple[str, int, str]  # path, bytes, xxh3-128


@dataclass(frozen=True)
class Keep:
    """The document goes on, perhaps with another text, with numbers to write beside it.

    `evidence` is one row for the stage's evidence file, about what was cut from the text.
    """

    document: Document
    attributes: Mapping[str, float] = field(default_factory=dict)
    evidence: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Drop:
    """The document ends here. `evidence` is one row for the stage's evidence file."""

    reason: str
    evidence: Mapping[str, Any] | None = None


class DocumentStep(ABC):
    """Decides on one document at a time. It is pickled to the workers; its repr is its identity."""

    @abstractmethod
    def judge(self, document: Document, shard: int, row: int) -> Keep | Drop:
        """Keeps or drops the document at `row` of input shard `shard`."""


@dataclass(frozen=True)
class MapReport:
    """What became of all documents of a map, added up over its shards."""

    read: int
    kept: int
    characters: int  # of the kept documents
    dropped: Mapping[str, int]
    errors: Mapping[str, int]
    examples: Sequence[Mapping[str, Any]]  # of drops and errors, a few per reason
    sources: Mapping[str, tuple[int, int]]  # source: (read, kept)
    tallies: Mapping[str, Mapping[str, int]]  # what else was counted, by name

    @property
    def counts(self) -> Counts:
        return Counts(
            unit="documents",
            read=self.read,
            kept=self.kept,
            dropped=self.dropped,
            errors=self.errors,
        )

    def numbers(self) -> dict[str, int | float]:
        """The numbers that every stage records."""
        reasons = {f"dropped/{reason}": count for reason, count in self.dropped.items()}
        totals = {"documents": self.kept, "documents_read": self.read}
        return {**totals, "characters": self.characters, **reasons}

    def tables(self) -> dict[str, Sequence[Mapping[str, Any]]]:
        """Examples by reason, and the share of each source that was removed."""
        tables: dict[str, Sequence[Mapping[str, Any]]] = {"sources": self.source_rows()}
        if drops := [row for row in self.examples if row["reason"] in self.dropped]:
            tables["dropped"] = drops
        if errors := [row for row in self.examples if row["reason"] in self.errors]:
            tables["errors"] = errors
        return tables

    def source_rows(self) -> list[dict[str, Any]]:
        ranked = sorted(self.sources.items(), key=lambda item: (-item[1][0], item[0]))
        return [
            {
                "source": source,
                "read": read,
                "kept": kept,
                "removed": round((read - kept) / read, 4),
            }
            for source, (read, kept) in ranked[:50]
        ]


def map_documents(
    ctx: Context,
    folder: str,
    step: DocumentStep,
    *,
    attributes: tuple[str, ...] = (),
    evidence_file: str | None = None,
    max_error_share: float = 0.01,
) -> MapReport:
    """Runs a step over all documents of a folder; writes `documents/` (and attributes) to ctx.out.

    Output shards keep the names and the order of the input's. `attributes` names the numbers that
    the step keeps with each document. Drops with evidence are collected in `evidence_file`.
    Raises StageError when more than `max_error_share` of the documents cannot be read or judged,
    and when no document is kept.
    """
    paths = tuple(shard_paths(folder))

    def check(report: MapReport) -> None:
        refuse_too_many_errors(report, max_error_share, folder)
        if report.kept == 0:
            reasons = ", ".join(f"{name} {count}" for name, count in report.dropped.items())
            kept = f"{ctx.recipe.address} kept 0 of {report.read} documents"
            way_out = "loosen the rule that drops most, or check input"
            raise StageError("bad_input", f"{kept}: {reasons or 'no input'}; {way_out}")

    return map_shards(
        ctx,
        paths,
        partial(_map_pipeline, paths, step, attributes),
        identity=f"{step!r} {attributes}",
        check=check,
        evidence_file=evidence_file,
    )


def map_shards(
    ctx: Context,
    paths: Sequence[str],
    make_pipeline: Callable[[str], list[Any]],
    *,
    identity: str,
    check: Callable[[MapReport], None],
    evidence_file: str | None = None,
) -> MapReport:
    """Runs a pipeline over each of the files, and puts what the ledgers list into ctx.out.

    `make_pipeline` is pickled and gets the work folder; its last step is a `WriteShard`. Shards
    that an earlier attempt finished are taken over when input bytes and `identity` are the same.
    `check` raises StageError when the report is too bad to publish.
    """
    done = run_shards(ctx, paths, make_pipeline, identity=identity)
    check(done.report)
    _publish(ctx, done, evidence_file)
    return done.report


@dataclass(frozen=True)
class Done:
    """Finished shards: what became of their documents, and their files below the work folder."""

    work: str
    files: Sequence[Sequence[str]]  # of each shard
    report: MapReport


def run_shards(
    ctx: Context,
    paths: Sequence[str],
    make_pipeline: Callable[[str], list[Any]],
    *,
    identity: str,
) -> Done:
    """Like `map_shards`, for a caller that looks at the report and publishes by itself.

    The last step of the pipeline saves the shard's ledger.
    """
    inputs = [checksum(path) for path in paths]
    work = work_folder(ctx, "map", inputs, identity)
    _forget_unfinished(work, len(inputs))
    run_tasks(ctx, work, partial(make_pipeline, work), len(inputs))
    ledgers = [_read_ledger(work, shard, found) for shard, found in enumerate(inputs)]
    return Done(work, [list(ledger["files"]) for ledger in ledgers], _add_up(ledgers))


def run_tasks(
    ctx: Context, work: str, make_pipeline: Callable[[], list[Any]], num_tasks: int
) -> None:
    """Runs tasks 0..num_tasks-1 of a datatrove pipeline in worker processes.

    `make_pipeline` is pickled, and called in the worker. Finished tasks are skipped. Raises
    StageError when a worker fails or is killed; then no worker is left.
    """
    os.makedirs(work, exist_ok=True)
    pending = [task for task in range(num_tasks) if not os.path.exists(completion(work, task))]
    with open(os.path.join(work, JOB_FILE), "wb") as file:
        pickle.dump((make_pipeline, num_tasks), file)
    workers = [
        _Worker(work, number, tasks)
        for number, tasks in enumerate(_deal(pending, ctx.placement))
        if tasks
    ]
    try:
        while sum(worker.running() for worker in workers):
            done = num_tasks - sum(not os.path.exists(completion(work, t)) for t in pending)
            ctx.progress(done, num_tasks, unit="shards")
            time.sleep(_POLL_SECONDS)
    finally:
        for worker in workers:
            worker.stop()
    ctx.progress(num_tasks, num_tasks, unit="shards")


def completion(work: str, task: int) -> str:
    """The file that datatrove leaves when a task is done."""
    return os.path.join(work, "completions", f"{task:05d}")


def shard_file(work: str, folder: str, shard: int, suffix: str = SUFFIX) -> str:
    """Path of a worker's output for a shard."""
    return os.path.join(work, folder, f"{shard:05d}{suffix}")


def _deal(tasks: Sequence[int], placement: Placement) -> list[Sequence[int]]:
    """Tasks by worker, in runs. Local processes; a placement's other executor is chosen here."""
    count = max(1, min(placement.workers, len(tasks)))
    edges = [len(tasks) * number // count for number in range(count + 1)]
    return [tasks[start:end] for start, end in itertools.pairwise(edges)]


class _Worker:
    """One process that runs its tasks in order. A fresh interpreter: no fork, no imported JAX."""

    def __init__(self, work: str, number: int, tasks: Sequence[int]):
        self._work = work
        self._tasks = tasks
        self._log = os.path.join(work, f"worker-{number}.log")
        self._failure = os.path.join(work, f"worker-{number}.failure")
        if os.path.exists(self._failure):
            os.remove(self._failure)
        command = [sys.executable, "-m", "marin_dagster.data.shard_worker", work, self._failure]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        environment |= dict.fromkeys(_THREADS, "1")
        with open(self._log, "wb") as log:
            self._process = subprocess.Popen(
                [*command, str(tasks[0]), str(tasks[-1])],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
            )

    def running(self) -> bool:
        """False when all its tasks are done; raises StageError when it ended otherwise."""
        status = self._process.poll()
        if status is None:
            return True
        if status != 0:
            self._refuse(status)
        return False

    def stop(self) -> None:
        """Kills the process and what it started, if anything is left of them."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _refuse(self, status: int) -> None:
        left = [t for t in self._tasks if not os.path.exists(completion(self._work, t))]
        left = left or list(self._tasks)
        if os.path.exists(self._failure):
            with open(self._failure) as file:
                failure = json.load(file)
            raise StageError(failure["reason"], f"shard {left[0]:05d}: {failure['message']}")
        with open(self._log, "rb") as file:
            tail = file.read()[-_LOG_TAIL_BYTES:].decode("utf-8", "replace")
        if status < 0:
            message = f"the worker of shard {left[0]:05d} was killed by signal {-status}"
            hint = "if it ran out of memory, give fewer workers or smaller shards"
            raise StageError("killed", f"{message}; {hint}\n{tail}")
        raise StageError("error", f"the worker of shard {left[0]:05d} exited {status}\n{tail}")


def work_folder(ctx: Context, purpose: str, inputs: Sequence[Checksum], identity: str) -> str:
    """A folder for exactly these input bytes and this work, so that no stale shard is reused."""
    key = json.dumps([rest for _, *rest in inputs]) + identity
    return os.path.join(ctx.work, f"{purpose}-{hashlib.sha256(key.encode()).hexdigest()[:16]}")


def checksum(path: str) -> Checksum:
    """Path, bytes and xxh3-128 of a file."""
    import xxhash

    digest = xxhash.xxh3_128()
    with open(path, "rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return path, os.path.getsize(path), digest.hexdigest()


def write_json(path: str, value: Any) -> None:
    """Writes a file that appears complete or not at all."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    hidden = f"{path}.{os.getpid()}.part"
    with open(hidden, "w", encoding="utf-8") as file:
        json.dump(value, file, ensure_ascii=False)
    os.replace(hidden, path)


def _map_pipeline(
    paths: tuple[str, ...], step: DocumentStep, attributes: tuple[str, ...], work: str
) -> list[Any]:
    from marin_dagster.data.shard_steps import JudgeShard, Ledger, ReadShard, WriteShard

    ledger = Ledger()
    names = tuple(os.path.basename(path) for path in paths)
    write = WriteShard(work, names, attributes, ledger)
    return [ReadShard(paths, ledger), JudgeShard(step, ledger), write]


def _forget_unfinished(work: str, num_shards: int) -> None:
    """Unmarks tasks whose ledger or output is absent or does not match what was written."""
    for shard in range(num_shards):
        done = completion(work, shard)
        if os.path.exists(done) and not _ledger_holds(work, shard):
            os.remove(done)


def _ledger_holds(work: str, shard: int) -> bool:
    try:
        with open(shard_file(work, "ledger", shard, ".json")) as file:
            ledger = json.load(file)
        return all(
            list(checksum(os.path.join(work, name))[1:]) == found
            for name, found in ledger["files"].items()
        )
    except (OSError, ValueError, KeyError):
        return False


def _read_ledger(work: str, shard: int, found: Checksum) -> dict[str, Any]:
    path = shard_file(work, "ledger", shard, ".json")
    if not _ledger_holds(work, shard):
        message = f"shard {shard:05d} of {found[0]} was reported done without a sound ledger {path}"
        raise StageError("error", f"{message}; is the disk full? Run the stage again")
    with open(path) as file:
        ledger = json.load(file)
    lost = ledger["read"] - ledger["kept"]
    lost -= sum(ledger["dropped"].values()) + sum(ledger["errors"].values())
    if lost:
        raise StageError("error", f"shard {shard:05d}: {lost} documents are unaccounted for")
    return ledger


def _add_up(ledgers: Iterable[Mapping[str, Any]]) -> MapReport:
    totals: Counter[str] = Counter()
    dropped: Counter[str] = Counter()
    errors: Counter[str] = Counter()
    shown: Counter[str] = Counter()
    examples: list[Mapping[str, Any]] = []
    sources: dict[str, tuple[int, int]] = {}
    tallies: dict[str, Counter[str]] = {}
    for ledger in ledgers:
        totals.update({name: ledger[name] for name in ("read", "kept", "characters")})
        dropped.update(ledger["dropped"])
        errors.update(ledger["errors"])
        for row in ledger["examples"]:
            shown[row["reason"]] += 1
            if shown[row["reason"]] <= MAX_EXAMPLES:
                examples.append(row)
        for source, (read, kept) in ledger["sources"].items():
            old = sources.get(source, (0, 0))
            sources[source] = (old[0] + read, old[1] + kept)
        for name, counts in ledger["tallies"].items():
            tallies.setdefault(name, Counter()).update(counts)
    return MapReport(
        read=totals["read"],
        kept=totals["kept"],
        characters=totals["characters"],
        dropped=dict(sorted(dropped.items())),
        errors=dict(sorted(errors.items())),
        examples=examples,
        sources=sources,
        tallies=tallies,
    )


def refuse_too_many_errors(report: MapReport, max_error_share: float, folder: str) -> None:
    """Raises StageError when more than this share of what was read could not be used."""
    failed = sum(report.errors.values())
    if failed > max_error_share * report.read:
        reasons = ", ".join(f"{name} {count}" for name, count in report.errors.items())
        raise StageError(
            "bad_input",
            f"{failed} of {report.read} documents in {folder} failed ({reasons}), more than "
            f"{max_error_share:.1%}; examples: {list(report.examples)[:MAX_EXAMPLES]}; "
            "repair or rebuild the input",
        )


def _publish(ctx: Context, done: Done, evidence_file: str | None) -> None:
    """Puts the finished shards where they are committed, and joins the evidence in shard order."""
    evidence: list[str] = []
    for name in itertools.chain.from_iterable(done.files):
        if name.startswith("evidence/"):
            evidence.append(os.path.join(done.work, name))
            continue
        target = os.path.join(ctx.out, name)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        shutil.copyfile(os.path.join(done.work, name), target)
    if evidence_file:
        with open(os.path.join(ctx.out, evidence_file), "wb") as joined:
            for path in evidence:
                with open(path, "rb") as file:
                    shutil.copyfileobj(file, joined)
