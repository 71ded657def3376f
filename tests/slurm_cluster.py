"""A Slurm cluster of this host alone: munge, a controller and three nodes, all in one folder.

Nothing outside of the folder is touched; the nodes are n0, n1 and n2, all at 127.0.0.1, and each
claims 4 processors and two accelerators that do not exist.
"""

import contextlib
import getpass
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from marin_dagster.process import send
from tests.servers import free_port

NODES = ("n0", "n1", "n2")
DAEMONS = ("munged", "slurmctld", "slurmd")
PACKAGES = "slurmctld slurmd slurm-client slurm-wlm-basic-plugins munge"
SECONDS = 60.0  # a busy machine is slow
CONF = """
ClusterName=laboratory
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket,cred_expire=5
SlurmctldPort={port}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmdSpoolDir={folder}/spool.%n
StateSaveLocation={folder}/state
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1,sched_min_interval=0
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
ReturnToService=2
SlurmctldTimeout=2
SlurmdTimeout=4
MessageTimeout=10
KillWait=2
OverTimeLimit=0
MinJobAge=300
InactiveLimit=0
SlurmdParameters=config_overrides
GresTypes=gpu
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


class SlurmCluster:
    """The daemons of one folder; `environment` leads Slurm's commands to them."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.environment = {"SLURM_CONF": str(folder / "slurm.conf")}
        self._daemons: dict[str, subprocess.Popen] = {}
        host = socket.gethostname().split(".")[0]
        nodes = [
            f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={free_port()} CPUs=4 "
            "RealMemory=4000 Gres=gpu:toy:2 State=UNKNOWN"
            for name in NODES
        ]
        facts = {"host": host, "user": getpass.getuser(), "port": free_port()}
        text = CONF.format(folder=folder, nodes="\n".join(nodes), **facts)
        (folder / "slurm.conf").write_text(text)
        (folder / "gres.conf").write_text(f"Name=gpu Type=toy File={folder}/gpu[0-1]\n")
        for name in ("gpu0", "gpu1"):
            (folder / name).touch()
        (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")

    def start(self) -> None:
        munge = self.folder / "munge"
        munge.mkdir(mode=0o711)
        (munge / "key").write_bytes(os.urandom(1024))
        (munge / "key").chmod(0o400)
        files = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log"}
        files |= {"seed-file": "seed"}
        words = [f"--{option}={munge / name}" for option, name in files.items()]
        self._start("munged", "--foreground", "--force", *words)
        wait_until((munge / "socket").exists, "munge")
        self.start_controller()
        for name in NODES:
            self.start_node(name)
        wait_until(lambda: self.nodes("idle") == set(NODES), "three idle nodes")

    def start_controller(self) -> None:
        self._start("slurmctld", "-D", "-f", str(self.folder / "slurm.conf"))

    def stop_controller(self) -> None:
        """Ends the controller, which first saves what it knows."""
        self._kill("slurmctld", signal.SIGTERM)

    def forget_jobs(self) -> None:
        """Takes from a controller that does not run all that it has saved."""
        shutil.rmtree(self.folder / "state")
        (self.folder / "state").mkdir(mode=0o711)

    def start_node(self, name: str) -> None:
        self._start("slurmd", "-D", "-f", str(self.folder / "slurm.conf"), "-N", name)

    def kill_node(self, name: str) -> None:
        """Ends a node's daemon and all that runs there, as a power failure does."""
        self._kill(f"slurmd -N {name}")
        send(self.processes(name), signal.SIGKILL)

    def nodes(self, state: str) -> set[str]:
        """The nodes in a state, as idle."""
        return set(self.run("sinfo", "-h", "-N", "-t", state, "-o", "%N").split())

    def jobs(self) -> list[str]:
        """The ids of the jobs that have not ended."""
        return self.run("squeue", "-h", "-o", "%i").split()

    def processes(self, node: str = "") -> list[int]:
        """The processes of jobs, and Slurm's own above them; of one node, or of all."""
        daemons = [process.pid for process in self._daemons.values()]
        pids = [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]
        return [pid for pid in pids if pid not in daemons and self._runs_on(node, pid)]

    def _runs_on(self, node: str, pid: int) -> bool:
        with contextlib.suppress(OSError):
            environment = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
            if f"SLURM_CONF={self.folder}/" in environment:
                return f"SLURMD_NODENAME={node}" in environment
            files = [os.readlink(file.path) for file in os.scandir(f"/proc/{pid}/fd")]
            return any(file.startswith(f"{self.folder}/slurmd.{node}") for file in files)
        return False

    def run(self, *words: str) -> str:
        environment = {**os.environ, **self.environment}
        done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60)
        return done.stdout

    def stop(self) -> None:
        for process in self._daemons.values():
            process.kill()
            process.wait()
        send(self.processes(), signal.SIGKILL)

    def _start(self, *words: str) -> None:
        environment = {**os.environ, **self.environment}
        environment["PATH"] += ":/usr/sbin:/sbin"  # of daemons, also for other users than root
        name = " ".join([words[0], *words[-2:]]) if "-N" in words else words[0]
        log = self.folder / f"{name.replace(' ', '')}.out"
        with log.open("ab") as out:
            self._daemons[name] = subprocess.Popen(words, env=environment, stdout=out, stderr=out)

    def _kill(self, name: str, number: int = signal.SIGKILL) -> None:
        process = self._daemons.pop(name)
        process.send_signal(number)
        process.wait(SECONDS)


def wait_until(holds: Callable[[], object], what: str, seconds: float = SECONDS) -> None:
    """Waits for an event; the file system and Slurm tell of none."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"{what} did not come within {seconds:g} s"
        time.sleep(0.05)


@contextlib.contextmanager
def slurm_cluster() -> Iterator[SlurmCluster]:
    """A cluster that is ready, and gone afterwards with all that it ran."""
    folder = Path(tempfile.mkdtemp(prefix="marin-slurm-"))
    cluster = SlurmCluster(folder)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(folder, ignore_errors=True)


def missing_daemons() -> list[str]:
    path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    return [name for name in DAEMONS if shutil.which(name, path=path) is None]
