"""The Kubernetes launcher and the real client, on a fake API server whose pods are processes."""

import json
import sys
import time

import pytest

from marin_dagster.launch.base import HostType, Job
from marin_dagster.launch.kubernetes import KubernetesLauncher
from marin_dagster.launch.manifests import KubernetesSettings
from marin_dagster.recipe import StageError

PYTHON = [sys.executable, "-S", "-c"]
SPEAK = "import os; print(*(os.environ.get('MARIN_' + name) for name in names), flush=True);"
SPEAK = f"names = ('PROCESS', 'PROCESSES', 'COORDINATOR'); {SPEAK}"
SLEEP = "import time; time.sleep(600)"
SAVE = (  # what a worker does that is told to end
    "import os, signal, sys, threading; told = threading.Event();"
    "signal.signal(signal.SIGTERM, lambda *_: told.set());"
    "print('ready', flush=True); told.wait(); print('saved', flush=True); sys.exit(75)"
)
STACKS = (
    "import faulthandler, signal, time; faulthandler.register(signal.SIGUSR1);"
    "print('ready', flush=True); time.sleep(600)"
)
SLICE = HostType(name="v5e-8", accelerator="tpu-v5-lite-podslice", accelerators=4, topology="2x4")
GPU = HostType(name="h100", accelerator="nvidia-h100-80gb", accelerators=8)
LIMIT_SECONDS = 60.0


@pytest.fixture
def launcher(cluster):
    return launcher_of(cluster)


def launcher_of(cluster, **changes) -> KubernetesLauncher:
    settings = {
        "namespace": "lab",
        "image": "lab:1",
        "kubeconfig": cluster.kubeconfig(),
        "poll_seconds": 0.02,
        "patience_seconds": 20.0,
        "grace_seconds": 5,
        "cancel_grace_seconds": 1,
        **changes,
    }
    return KubernetesLauncher(KubernetesSettings(**settings))


@pytest.fixture
def job(tmp_path):
    def make(code: str, processes: int = 2, **fields) -> Job:
        logs = str(tmp_path / "logs")
        command = [*PYTHON, code]
        given = {"environment": {"A": "$(B)"}, "logs": logs, **fields}
        return Job(name="checkpoints/toy", command=command, processes=processes, **given)

    return make


def end_of(launcher, handle):
    return until(lambda: (state := launcher.state(handle)).done and state)


def until(what):
    deadline = time.monotonic() + LIMIT_SECONDS
    while not (found := what()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found


def says(launcher, handle, word: str, processes: int = 2):
    until(lambda: all(word in launcher.logs(handle, n) for n in range(processes)))


@pytest.mark.parametrize("host", [GPU, SLICE], ids=["job", "jobset"])
def test_every_process_knows_its_place_and_its_log_is_kept(cluster, launcher, job, tmp_path, host):
    handle = launcher.submit(job(SPEAK, host=host))
    assert end_of(launcher, handle).succeeded
    launcher.cancel(handle)
    words = [(tmp_path / "logs" / f"000{n}.log").read_text().split() for n in range(2)]
    assert [found[:2] for found in words] == [["0", "2"], ["1", "2"]]
    assert words[0][2] == words[1][2]
    assert words[0][2].startswith("127.0.0.1:")
    assert launcher.logs(handle, 1) == [" ".join(words[1])]
    assert cluster.left() == []
    launcher.cancel(handle)  # once more


@pytest.mark.parametrize("host", [GPU, SLICE], ids=["job", "jobset"])
def test_the_process_that_fails_first_is_the_reason(cluster, launcher, job, tmp_path, host):
    die = f"import os, sys; os.environ['MARIN_PROCESS'] == '1' and sys.exit(124); {SAVE}"
    handle = launcher.submit(job(die, host=host))
    state = end_of(launcher, handle)
    assert state.reason == "hang"
    assert state.evidence["process"] == 1
    assert state.evidence["node"] == "node-1"
    assert state.evidence["exit_code"] == 124
    assert "-1-" in state.evidence["pod"]
    launcher.cancel(handle)
    assert cluster.left() == []
    assert (tmp_path / "logs" / "0001.log").exists()


def test_a_killed_process_is_killed_by_a_signal(cluster, launcher, job):
    kill = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"
    handle = launcher.submit(job(kill, processes=1))
    state = end_of(launcher, handle)
    assert (state.reason, state.evidence["signal"]) == ("killed", "SIGSEGV")
    launcher.cancel(handle)


def test_a_container_beyond_its_memory_is_out_of_memory(cluster, launcher, job):
    handle = launcher.submit(job(STACKS))
    says(launcher, handle, "ready")
    cluster.oom_kill(1)
    state = end_of(launcher, handle)
    assert (state.reason, state.evidence["process"]) == ("oom", 1)
    launcher.cancel(handle)


def test_an_evicted_pod_is_preempted_and_all_could_save(cluster, launcher, job, tmp_path):
    handle = launcher.submit(job(SAVE))
    says(launcher, handle, "ready")
    launcher.state(handle)
    cluster.disrupt(0)
    state = end_of(launcher, handle)
    assert state.reason == "preempted"
    assert state.evidence["process"] == 0
    launcher.cancel(handle)
    assert cluster.left() == []


def test_an_eviction_is_known_to_a_launcher_that_did_not_watch(cluster, launcher, job):
    handle = launcher.submit(job(SAVE))
    says(launcher, handle, "ready")
    cluster.disrupt(1)
    cluster.wait(lambda: not cluster.containers)
    state = launcher_of(cluster).state(handle)
    assert (state.done, state.reason) == (True, "preempted")
    assert "-1-" in state.evidence["kubernetes"]
    launcher.cancel(handle)


def test_a_lost_node_is_a_preemption_and_leaves_nothing(cluster, launcher, job):
    handle = launcher.submit(job(STACKS))
    says(launcher, handle, "ready")
    cluster.lose_node(1)
    state = end_of(launcher, handle)
    assert (state.reason, state.evidence["node"]) == ("preempted", "node-1")
    launcher.cancel(handle)
    assert cluster.left() == []


def test_stacks_of_all_processes_come_into_their_logs(cluster, launcher, job):
    handle = launcher.submit(job(STACKS))
    says(launcher, handle, "ready")
    launcher.dump_stacks(handle)
    for process in range(2):
        until(lambda n=process: "most recent call" in "".join(launcher.logs(handle, n)))
    assert not launcher.state(handle).done
    launcher.cancel(handle)


@pytest.mark.parametrize("host", [GPU, SLICE], ids=["job", "jobset"])
def test_a_cancel_saves_logs_and_leaves_nothing(cluster, launcher, job, tmp_path, host):
    deaf = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {STACKS}"
    handle = launcher.submit(job(deaf, host=host))
    says(launcher, handle, "ready")
    started = time.monotonic()
    launcher.cancel(handle)
    assert time.monotonic() - started < 15
    assert cluster.left() == []
    assert {(tmp_path / "logs" / f"000{n}.log").read_text() for n in range(2)} == {"ready\n"}
    state = launcher_of(cluster).state(handle)
    assert state.done
    assert not state.succeeded


def test_logs_that_cannot_be_written_do_not_keep_a_job(cluster, launcher, job):
    handle = launcher.submit(job(STACKS, logs="/dev/null/logs"))
    says(launcher, handle, "ready")
    with pytest.raises(OSError, match="/dev/null/logs"):
        launcher.cancel(handle)
    assert cluster.left() == []


@pytest.mark.parametrize("path", ["/jobs", "/services"])
def test_a_lost_answer_starts_nothing_twice(cluster, launcher, job, path):
    lost = []

    def lose(method, where):
        if method == "POST" and where.endswith(path) and not lost:
            lost.append(where)
            return "lose"
        return None

    cluster.rule = lose
    handle = launcher.submit(job(STACKS))
    says(launcher, handle, "ready")
    assert launcher_of(cluster).submit(job(STACKS)) == handle  # its submitter died, and began anew
    assert len(cluster.pods()) == 2
    assert lost
    launcher.cancel(handle)
    assert cluster.left() == []


def test_a_server_that_is_away_ends_no_job(cluster, launcher, job):
    handle = launcher.submit(job(SAVE))
    says(launcher, handle, "ready")
    cluster.stop()
    state = launcher.state(handle)
    assert not state.done
    assert "does not answer" in state.waits
    cluster.start()
    cluster.rule = lambda method, path: 429 if len(cluster.requests) % 2 else None
    launcher.cancel(handle)
    assert cluster.left() == []


def test_an_image_that_cannot_be_pulled_is_an_error_in_the_kubelets_words(cluster, job):
    cluster.broken_images["lab:1"] = 'Back-off pulling image "lab:1": not found'
    launcher = launcher_of(cluster)
    handle = launcher.submit(job(SPEAK))
    state = launcher.state(handle)
    assert not state.done
    assert "not found" in state.waits
    impatient = launcher_of(cluster, image_seconds=-1.0)
    state = impatient.state(handle)
    assert (state.done, state.reason) == (True, "error")
    assert (
        state.evidence["kubelet"] == 'ImagePullBackOff: Back-off pulling image "lab:1": not found'
    )
    launcher.cancel(handle)
    assert cluster.left() == []


def test_what_a_job_waits_for_is_said(cluster, launcher, job):
    cluster.no_room = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu"
    handle = launcher.submit(job(SPEAK))
    assert "3 Insufficient nvidia.com/gpu" in launcher.state(handle).waits
    launcher.cancel(handle)
    cluster.suspended = True
    handle = launcher.submit(job(SPEAK))
    assert "waits for its turn" in launcher.state(handle).waits
    launcher.cancel(handle)
    assert cluster.left() == []


def test_what_is_missing_is_found_before_anything_starts(cluster, job):
    wanted = job(SPEAK, host=GPU)
    cluster.denied = {"create jobs", "get pods/log"}
    missing = launcher_of(cluster, queue="gpus").preflight(wanted)
    words = "\n".join(missing)
    assert len(missing) == 4
    for word in ("create jobs", "get pods/log", "LocalQueue 'gpus'", "nvidia-h100-80gb"):
        assert word in words
    cluster.denied = set()
    cluster.add_node("node-0", **{"cloud.google.com/gke-accelerator": "nvidia-h100-80gb"})
    cluster.put("localqueues", {"metadata": {"name": "gpus"}})
    assert launcher_of(cluster, queue="gpus").preflight(wanted) == []
    assert "no namespace" in launcher_of(cluster, namespace="other").preflight(wanted)[0]
    assert "no image" in launcher_of(cluster, image="").preflight(wanted)[0]
    assert "2 hosts" in launcher_of(cluster).preflight(job(SPEAK, processes=3, host=SLICE))[0]
    cluster.stop()
    assert "does not answer" in launcher_of(cluster).preflight(wanted)[0]
    assert all("/jobs" not in path for path in cluster.requests)


def test_a_refusal_comes_in_the_servers_words(cluster, launcher, job):
    with pytest.raises(StageError, match="a variable is given twice"):
        launcher.submit(job(SPEAK, environment={"MARIN_PROCESS": "0"}))
    assert cluster.left() == []
    handle = launcher.submit(job(SPEAK))
    cluster.objects["jobs", json.loads(handle)["name"]]["metadata"]["labels"] = {}
    with pytest.raises(StageError, match="is another's"):
        launcher.submit(job(SPEAK))
