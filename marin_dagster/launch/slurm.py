"""Turns a job into a job of Slurm: sbatch, srun, scontrol and scancel do the work.

The folder of a job, below `SlurmSettings.folder`, holds the script `job.sbatch`, what it printed
(`job.log`), how each process ended (`ranks/0000.json`) and, at the end, `ended`. So the end of a
job is known even when Slurm has forgotten it and keeps no accounts. The names of folder and job
carry a digest of all that is to run: a job that is submitted again, because the answer was lost or
its submitter died, is found and not started twice.
"""

import contextlib
import dataclasses
import json
import os
import re
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fsspec

from marin_dagster.failure import judge_exit
from marin_dagster.launch.base import Job, JobState
from marin_dagster.launch.logs import last_lines
from marin_dagster.launch.names import digest_of
from marin_dagster.launch.polled import Polled
from marin_dagster.launch.slurm_script import SlurmSettings, script
from marin_dagster.recipe import StageError

PROGRAMS = ("sbatch", "srun", "scontrol", "squeue", "scancel")  # sacct where there are accounts
CALL_SECONDS = 30.0  # a client of a controller that is away gives up by itself, after about 9 s
END_SECONDS = 2.0  # until the controller has heard that the processes of a job have ended
KILL_SECONDS = 10.0  # Slurm looks after 1, 3 and 7 s whether what it has killed is gone
POLL_SECONDS = 0.1  # of a job that is being cancelled
AWAY = re.compile(
    r"Unable to contact slurm controller|Socket timed out|Connection (refused|timed out|reset)|"
    r"Zero Bytes were transmitted|Unable to establish control|in standby mode",
    re.IGNORECASE,
)
UNKNOWN = re.compile(r"Invalid job id", re.IGNORECASE)
OVER = re.compile(r"Invalid job id|already complet|not running", re.IGNORECASE)
WAITING = ("PENDING", "CONFIGURING", "SUSPENDED", "STOPPED", "REQUEUED", "REQUEUE_HOLD")
WAITING += ("REQUEUE_FED", "RESV_DEL_HOLD")
RUNNING = ("RUNNING", "COMPLETING", "STAGE_OUT", "SIGNALING", "RESIZING")
LOST = ("NODE_FAIL", "BOOT_FAIL")
REASONS = {
    "TIMEOUT": "timeout",
    "DEADLINE": "timeout",
    "OUT_OF_MEMORY": "oom",
    "PREEMPTED": "preempted",
    "NODE_FAIL": "killed",
    "BOOT_FAIL": "killed",
    "CANCELLED": "user_cancel",
    "REVOKED": "user_cancel",
}


class _Away(Exception):
    """The controller did not answer."""


@dataclass(frozen=True, kw_only=True)
class _Handle:
    """What one needs to find a job again."""

    job: str  # Slurm's number of what was submitted
    name: str
    folder: str
    logs: str
    processes: int

    @classmethod
    def of(cls, handle: str) -> "_Handle":
        return cls(**json.loads(handle))

    @property
    def number(self) -> str:
        """Slurm's number of the job that began, should the same job have been submitted twice."""
        with contextlib.suppress(FileNotFoundError):
            return Path(self.folder, "number").read_text().strip()
        return self.job

    @property
    def local_logs(self) -> Path:
        """Where the processes write: the job's own folder when its logs belong in a bucket."""
        return Path(self.folder, "logs") if "://" in self.logs else Path(self.logs)


class SlurmLauncher:
    """Submits jobs to the cluster that this machine is a client of, or that SLURM_CONF names.

    Every process has a node of its own. The controller may be away for a while: a job that runs
    goes on, and `state` calls it not done.
    """

    def __init__(self, settings: SlurmSettings):
        self._settings = settings
        self._polled = Polled(settings.poll_seconds)

    def preflight(self, job: Job) -> list[str]:
        """What is missing: programs, the controller, and what Slurm says against the job."""
        path = os.environ.get("PATH", "")
        missing = [name for name in PROGRAMS if shutil.which(name, path=path) is None]
        if missing:
            return [f"no {', '.join(missing)} in PATH; install Slurm's client commands"]
        try:
            text = script(job, self._settings, name=job.name, folder="/", logs="/")
            done = _call("sbatch", "--test-only", text=text)
        except _Away as error:
            return [str(error)]
        return [] if done.returncode == 0 else [f"Slurm would refuse {job.name}: {_words(done)}"]

    def submit(self, job: Job) -> str:
        """Starts the job, or finds it if the same job was submitted before; returns its handle.

        Raises StageError with Slurm's own words when it refuses, and when the controller does not
        answer for `patience_seconds`.
        """
        name = re.sub(r"[^A-Za-z0-9._-]", "-", f"{job.name}-{digest_of(job)}")
        folder = Path(self._settings.folder).absolute() / name
        handle = _Handle(
            job="", name=name, folder=str(folder), logs=job.logs, processes=job.processes
        )
        again = (folder / "job.sbatch").exists()
        for path in (folder / "ranks", handle.local_logs):
            path.mkdir(parents=True, exist_ok=True)
        text = script(
            job, self._settings, name=name, folder=str(folder), logs=str(handle.local_logs)
        )
        _write_private(folder / "job.sbatch", text)
        number = self._submit(name, folder, again)
        return json.dumps(dataclasses.asdict(dataclasses.replace(handle, job=number)))

    def state(self, handle: str) -> JobState:
        """Asks the controller, at most every `poll_seconds` while the job runs."""
        ended = Path(_Handle.of(handle).folder, "ended").exists()
        return self._polled.state(handle, _ask, at_once=ended)

    def dump_stacks(self, handle: str) -> None:
        """Asks `slurm_rank` on every node to tell its process; all others take no notice."""
        with contextlib.suppress(_Away):  # it is somebody who waits that asks for it
            _call("scancel", "--signal=URG", _Handle.of(handle).number)

    def cancel(self, handle: str) -> None:
        """Tells the processes to end; what is left after `grace_seconds` is killed on its node.

        Raises StageError when Slurm cannot say that nothing is left.
        """
        found = _Handle.of(handle)
        try:
            left = self._cancel(found)
        except _Away as error:
            left = str(error)
        if left:
            raise StageError(
                "error",
                f"job {found.number} ({found.name}) could not be cancelled: {left}; it may still "
                f"hold its nodes, so cancel it by hand: scancel {found.number}",
            )
        _publish_logs(found)

    def logs(self, handle: str, process: int = 0, lines: int = 50) -> list[str]:
        """The last lines of a process, or of the script when the process has printed nothing."""
        found = _Handle.of(handle)
        for path in (found.local_logs / f"{process:04d}.log", Path(found.folder, "job.log")):
            if tail := last_lines(path, lines):
                return tail
        return []

    def _submit(self, name: str, folder: Path, again: bool) -> str:
        deadline = time.monotonic() + self._settings.patience_seconds
        while True:
            try:
                if again and (number := _find(name, folder)):
                    return number
                done = _call("sbatch", "--parsable", str(folder / "job.sbatch"))
            except _Away as error:
                if time.monotonic() > deadline:
                    raise StageError("error", f"{name} could not be submitted: {error}") from None
                again = True  # the answer may be what was lost
                time.sleep(min(1.0, self._settings.patience_seconds))
                continue
            if done.returncode != 0:
                raise StageError(
                    "bad_input",
                    f"Slurm refused {name}: {_words(done)}; see {folder}/job.sbatch, and set "
                    "partition, account and qos to what `sinfo` and `sacctmgr show assoc` list",
                )
            return done.stdout.strip().split(";")[0]

    def _cancel(self, found: _Handle) -> str:
        """Returns what is left, in words; nothing if the job is gone."""
        _call("scancel", "--state=PENDING", f"--name={found.name}")
        for words, seconds in (
            (["--signal=TERM"], self._settings.grace_seconds + END_SECONDS),
            (["--signal=KILL", "--full"], KILL_SECONDS),
        ):
            done = _call("scancel", *words, found.number)
            if done.returncode != 0 and not OVER.search(done.stderr):
                return _words(done)
            deadline = time.monotonic() + seconds
            while (facts := _facts(found)) and facts["JobState"] in (*WAITING, *RUNNING):
                if time.monotonic() > deadline:
                    break
                time.sleep(POLL_SECONDS)
            else:
                return ""
        return f"it is {facts['JobState']} on {facts.get('NodeList', 'no node')}"


def _ask(handle: str) -> JobState:
    try:
        return _state(_Handle.of(handle))
    except _Away as error:
        return JobState(done=False, waits=str(error))


def _state(found: _Handle) -> JobState:
    """What Slurm says of a job, and what its processes wrote down where they know better."""
    facts = _facts(found) or _accounts(found)
    if facts is None:
        return _forgotten(found)
    state = facts["JobState"]
    if state in RUNNING:
        return JobState(done=False)
    if state in WAITING:
        return JobState(done=False, waits=f"{state}: {facts.get('Reason', 'no reason given')}")
    if state == "COMPLETED":
        return JobState(done=True, succeeded=True)
    reason, evidence = _first_failure(found, facts["NodeList"]) or _judge(facts["ExitCode"])
    evidence |= {"slurm_job": found.number, "slurm_state": state}
    if state in LOST:
        evidence.setdefault("node", facts["NodeList"])
    return JobState(done=True, reason=REASONS.get(state, reason), evidence=evidence)


def _forgotten(found: _Handle) -> JobState:
    """How a job ended that Slurm does not know any more."""
    evidence: dict[str, Any] = {"slurm_job": found.number, "slurm_state": "unknown"}
    try:
        status = int(Path(found.folder, "ended").read_text())
    except FileNotFoundError:
        return JobState(done=True, reason="killed", evidence=evidence)
    if status == 0:
        return JobState(done=True, succeeded=True, evidence=evidence)
    reason, more = _first_failure(found, "") or _judge(f"{status}:0")
    return JobState(done=True, reason=reason, evidence={**more, **evidence})


def _first_failure(found: _Handle, nodes: str) -> tuple[str, dict[str, Any]] | None:
    """Why the first process failed that nobody had told to end; srun ended the others for it.

    Where there is none, one that left no word was lost, and its node with it.
    """
    paths = sorted(Path(found.folder, "ranks").glob("*.json"))
    endings = [json.loads(path.read_text()) for path in paths]
    failed = [ending for ending in endings if ending["status"] != 0]
    missing = set(range(found.processes)) - {ending["evidence"]["process"] for ending in endings}
    if endings and missing and all(ending["asked"] for ending in failed):
        return "killed", {"process": min(missing), **_node(nodes, min(missing))}
    if not failed:
        return None
    first = min(failed, key=lambda ending: (ending["asked"], ending["time"]))
    return first["reason"], first["evidence"]


def _node(nodes: str, process: int) -> dict[str, str]:
    """Where a process ran: they lie on the nodes of a job in order."""
    names = _call("scontrol", "show", "hostnames", nodes).stdout.split() if nodes else []
    return {"node": names[process]} if process < len(names) else {}


def _judge(code: str) -> tuple[str, dict[str, Any]]:
    """Reason and evidence of an exit code as Slurm writes it: status, colon, signal."""
    status, number = (int(part) for part in code.split(":"))
    return judge_exit(-number if number else status, oom_kills=0)


def _facts(found: _Handle) -> dict[str, str] | None:
    """What the controller knows of a job; None if it knows no such job."""
    done = _call("scontrol", "-o", "show", "job", found.number)
    if done.returncode != 0:
        if UNKNOWN.search(done.stderr):
            return None
        raise _Away(_words(done))
    facts = dict(word.split("=", 1) for word in done.stdout.split() if "=" in word)
    return facts if facts["JobName"] == found.name else None  # numbers are used again


def _accounts(found: _Handle) -> dict[str, str] | None:
    """What the accounts say of a job that has ended; None where there are none."""
    if shutil.which("sacct") is None:
        return None
    fields = {"JobName": "JobName", "JobState": "State", "ExitCode": "ExitCode"}
    fields["NodeList"] = "NodeList"
    words = ["-X", "-n", "-P", "-j", found.number, "-o", ",".join(fields.values())]
    with contextlib.suppress(_Away):
        for line in _call("sacct", *words).stdout.splitlines():
            facts = dict(zip(fields, line.split("|"), strict=True))
            facts["JobState"] = facts["JobState"].split()[0]  # CANCELLED by 1000
            if facts["JobName"] == found.name and facts["JobState"] not in (*WAITING, *RUNNING):
                return facts
    return None


def _find(name: str, folder: Path) -> str | None:
    """The number of a job that was submitted: the one that began, or else one that waits."""
    with contextlib.suppress(FileNotFoundError):
        return (folder / "number").read_text().strip()
    done = _call("squeue", "--noheader", "--states=all", f"--name={name}", "--format=%i")
    if done.returncode != 0:
        raise _Away(_words(done))
    return min(done.stdout.split(), key=int, default=None)


def _call(*words: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
    """Runs one of Slurm's programs; raises _Away when the controller did not answer it."""
    # What a shell sets for sbatch would win over the script; what a job of Slurm left is stale.
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("SLURM_", "SBATCH_", "SRUN_")) or name == "SLURM_CONF"
    }
    try:
        done = subprocess.run(
            words,
            input=text,
            env={**environment, "LC_ALL": "C"},
            capture_output=True,
            text=True,
            timeout=CALL_SECONDS,
        )
    except FileNotFoundError:
        raise StageError(
            "error", f"no {words[0]} in PATH; install Slurm's client commands on this machine"
        ) from None
    except subprocess.TimeoutExpired:
        raise _Away(f"no answer to {words[0]} within {CALL_SECONDS:g} s") from None
    if done.returncode != 0 and AWAY.search(done.stderr):
        raise _Away(f"Slurm's controller does not answer: {_words(done)}")
    return done


def _words(done: subprocess.CompletedProcess[str]) -> str:
    return " ".join(done.stderr.split()) or f"exit status {done.returncode}"


def _write_private(path: Path, text: str) -> None:
    """The environment of a job is nobody else's business."""
    path.touch(mode=0o700)
    path.write_text(text)


def _publish_logs(found: _Handle) -> None:
    """Puts the logs where the job wants them, if that is not where the processes wrote."""
    if str(found.local_logs) == found.logs:
        return
    target, root = fsspec.core.url_to_fs(found.logs)
    for path in sorted(found.local_logs.glob("*.log")):
        target.put_file(str(path), f"{root}/{path.name}")
