"""Turns a job and a site's settings into a script for sbatch."""

import re
import shlex
import sys
from dataclasses import dataclass

from marin_dagster.launch.base import Job

OURS = re.compile(
    r"--(nodes|ntasks\S*|job-name|output|error|open-mode|array|(no-)?requeue)\b|-[NnJoea]"
)
FIRST_PORT, PORTS = 61440, 4096  # above those that Linux gives away by itself


@dataclass(frozen=True, kw_only=True)
class SlurmSettings:
    """What a site asks of a job, and how patient the launcher is.

    `folder` is on a file system that the nodes share with this machine, as is the prefix. `options`
    go to sbatch as they are, as --constraint=h100; `setup` are lines of shell before the job, as
    module load cuda. A job that is told to end has `grace_seconds` for it.
    """

    folder: str
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    time_limit_minutes: int | None = None
    options: tuple[str, ...] = ()
    setup: tuple[str, ...] = ()
    grace_seconds: float = 8.0
    poll_seconds: float = 5.0  # between two questions to the controller about one job
    patience_seconds: float = 60.0  # for a controller that does not answer a submission

    def __post_init__(self) -> None:
        if self.time_limit_minutes is not None and self.time_limit_minutes < 1:
            raise ValueError(
                f"time_limit_minutes={self.time_limit_minutes} is below 1, the shortest of Slurm"
            )
        for option in self.options:
            if OURS.match(option) or not option.startswith("-"):
                raise ValueError(
                    f"options has {option!r}; name options of sbatch as --constraint=h100, and "
                    "leave nodes, tasks, names, logs and new tries to the launcher"
                )


def script(job: Job, settings: SlurmSettings, *, name: str, folder: str, logs: str) -> str:
    """The text of `job.sbatch`: one process on each of `job.processes` nodes.

    The script leaves its number in `folder`/number and, last, the exit status in `folder`/ended. A
    second job with the same folder does nothing.
    """
    options = "".join(f"#SBATCH {option}\n" for option in _options(job, settings, name, folder))
    exports = {**job.environment, "MARIN_PROCESSES": str(job.processes)}
    lines = [f"export {key}={shlex.quote(value)}" for key, value in exports.items()]
    if job.processes > 1:
        lines += COORDINATOR.format(port=f"{FIRST_PORT} + SLURM_JOB_ID % {PORTS}").splitlines()
    runner = [sys.executable, "-m", "marin_dagster.launch.slurm_rank", f"{folder}/ranks"]
    command = shlex.join([*runner, str(settings.grace_seconds), *job.command])
    words = ["--kill-on-bad-exit=1", "--wait=0", "--open-mode=append", f"--output={logs}/%4t.log"]
    if job.host.cpus is not None:
        words.append(f"--cpus-per-task={job.host.cpus}")  # srun does not take it from sbatch
    return SCRIPT.format(
        options=options,
        folder=shlex.quote(folder),
        lines="\n".join([*lines, *settings.setup]),
        srun=shlex.join(["srun", *words]),
        command=command,
    )


def _options(job: Job, settings: SlurmSettings, name: str, folder: str) -> list[str]:
    host = job.host
    values = {
        "job-name": name,
        "nodes": job.processes,
        "ntasks": job.processes,
        "ntasks-per-node": 1,
        "cpus-per-task": host.cpus,
        "mem": None if host.memory_bytes is None else f"{-(-host.memory_bytes // 2**20)}M",
        "gres": f"{host.accelerator}:{host.accelerators}" if host.accelerators else None,
        "partition": settings.partition,
        "account": settings.account,
        "qos": settings.qos,
        "time": settings.time_limit_minutes,
        "output": f"{folder}/job.log",
    }
    chosen = [f"--{option}={value}" for option, value in values.items() if value is not None]
    return [*chosen, "--open-mode=append", "--export=ALL", "--no-requeue", *settings.options]


# A node's address is what the controller reaches it by; its name need not resolve.
COORDINATOR = """\
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
address=$(scontrol -o show node "$first" | sed -n 's/.* NodeAddr=\\([^ ]*\\).*/\\1/p')
export MARIN_COORDINATOR="${{address:-$first}}:$(({port}))\""""

# SIGTERM is a notice: the processes of the job get it too, and srun ends when they have ended.
SCRIPT = """\
#!/bin/bash
{options}
folder={folder}
if ! (set -o noclobber; echo "$SLURM_JOB_ID" > "$folder/number"); then
  echo "job $(cat "$folder/number") does this work; this one, $SLURM_JOB_ID, does nothing" >&2
  exit 1
fi
{lines}
trap : TERM
{srun} \\
  {command} &
while wait $!; status=$?; kill -0 $! 2> /dev/null; do :; done
wait $!; status=$?
echo "$status" > "$folder/ended.part" && mv "$folder/ended.part" "$folder/ended"
exit "$status"
"""
