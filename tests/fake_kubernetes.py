"""A Kubernetes API server that is strict about what it is sent, and runs pods as processes here.

It knows what the launcher uses: Jobs, JobSets, Services, pods with their logs and exec, events,
nodes, queues and reviews of rights. Its controllers do with pods what those of Kubernetes do: one
that fails ends the others, what belongs to a deleted Job is deleted, a node that is lost takes no
orders. Nothing here was compared with a real cluster.
"""

import contextlib
import datetime
import json
import re
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate

from tests.containers import Container
from tests.jobset_schema import JOBSET
from tests.kubernetes_http import Refusal, serve
from tests.servers import free_port

VERSION = "1.34"
SCHEMAS = ("Job", "Service", "SelfSubjectAccessReview")  # that kubernetes-validate knows
LABEL = re.compile(r"([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?")
NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
INDEX = "batch.kubernetes.io/job-completion-index"
WAIT_SECONDS = 60.0

Manifest = dict[str, Any]


class FakeKubernetes:
    """A cluster with the namespace `lab`; `url` is where its API is.

    What a test sets: `broken_images`, image and what the kubelet says of it; `no_room`, why no pod
    is scheduled; `suspended`, whether Kueue holds new jobs back; `denied`, rights as "verb
    resource" that are refused; `rule`, as that of `servers.proxy`.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self.objects: dict[tuple[str, str], Manifest] = {}  # by plural and name
        self.containers: dict[str, Container] = {}
        self.broken_images: dict[str, str] = {}
        self.no_room: str | None = None
        self.suspended = False
        self.denied: set[str] = set()
        self.rule: Callable[[str, str], int | str | None] = lambda method, path: None
        self.requests: list[str] = []
        self._lost_nodes: set[str] = set()
        self._ports: dict[str, int] = {}  # by host name: all pods are one machine here
        self.port = free_port()
        self._stop: Callable[[], None] = lambda: None
        self.put("namespaces", {"metadata": {"name": "lab"}})

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        self._stop = serve(self, self.port)

    def stop(self) -> None:
        """The API server goes away; kubelets and pods go on."""
        self._stop()

    def kubeconfig(self) -> str:
        """The path of a file by which clients find this cluster."""
        path = self.folder / "kubeconfig"
        named = {
            "users": [{"name": "me", "user": {}}],
            "clusters": [{"name": "fake", "cluster": {"server": self.url}}],
            "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "me"}}],
        }
        kind = {"apiVersion": "v1", "kind": "Config", "current-context": "fake"}
        path.write_text(json.dumps({**kind, **named}))
        return str(path)

    # What a test does to the cluster.

    def put(self, plural: str, manifest: Manifest) -> None:
        self.objects[plural, manifest["metadata"]["name"]] = manifest

    def add_node(self, name: str, **labels: str) -> None:
        self.put("nodes", {"metadata": {"name": name, "labels": labels}})

    def wait(self, what: Callable[[], Any], seconds: float = WAIT_SECONDS) -> Any:
        """Waits until something of the cluster is true, and returns it."""
        with self.changed:
            found = self.changed.wait_for(what, seconds)
        assert found, "it did not come to that"
        return found

    def pods(self) -> list[Manifest]:
        with self.lock:
            pods = [one for (plural, _), one in self.objects.items() if plural == "pods"]
            return sorted(pods, key=lambda pod: int(pod["metadata"]["annotations"][INDEX]))

    def _pods_of(self, owner: str) -> list[Manifest]:
        return [pod for pod in self.pods() if owner in pod["owners"]]

    def left(self) -> list[str]:
        """Everything but nodes, namespaces and queues, and the processes of pods that live."""
        kept = ("nodes", "namespaces", "localqueues", "events")
        with self.lock:
            names = [f"{plural}/{name}" for plural, name in self.objects if plural not in kept]
            return names + [f"process/{name}" for name in self.containers]

    def disrupt(self, process: int) -> None:
        """Evicts a pod, as the drain of a node or a scheduler with better work does."""
        pod = self.pods()[process]
        self._disrupted(pod, "PreemptionByScheduler", "a pod of higher priority needs the node")
        self.delete_pod(pod, pod["spec"]["terminationGracePeriodSeconds"])

    def lose_node(self, process: int) -> None:
        """A node dies, and that was noticed some time ago: its pod cannot be seen to end."""
        pod = self.pods()[process]
        name = pod["metadata"]["name"]
        with self.changed:
            self._lost_nodes.add(pod["spec"]["nodeName"])
            pod["metadata"]["deletionTimestamp"] = _timestamp(time.time() - 60)
        self._disrupted(pod, "DeletionByTaintManager", "the node does not answer")
        self.containers[name].kill()

    def oom_kill(self, process: int) -> None:
        pod = self.pods()[process]
        with self.lock:
            pod["oom"] = True
            self.containers[pod["metadata"]["name"]].kill()

    def _disrupted(self, pod: Manifest, reason: str, message: str) -> None:
        condition = {"type": "DisruptionTarget", "status": "True"}
        with self.changed:
            conditions = pod["status"].setdefault("conditions", [])
            conditions.append({**condition, "reason": reason, "message": message})
            self.changed.notify_all()

    # What the API server does.

    def create(self, plural: str, manifest: Manifest) -> Manifest:
        """Admits an object and lets the controllers work; raises Refusal."""
        validate(manifest)
        if plural == "selfsubjectaccessreviews":
            asked = manifest["spec"]["resourceAttributes"]
            parts = [asked["resource"], *([asked["subresource"]] if "subresource" in asked else [])]
            allowed = f"{asked['verb']} {'/'.join(parts)}" not in self.denied
            return {**manifest, "status": {"allowed": allowed}}
        name = manifest["metadata"]["name"]
        with self.changed:
            if (plural, name) in self.objects:
                raise Refusal(409, f'{plural} "{name}" already exists')
            made = {**manifest, "status": {}}
            made["metadata"] = {
                **manifest["metadata"],
                "uid": str(uuid.uuid4()),
                "creationTimestamp": _timestamp(),
            }
            self.objects[plural, name] = made
            if plural == "jobs":
                self._start_job(made)
            if plural == "jobsets":
                self._start_jobset(made)
            self.changed.notify_all()
        return made

    def delete(self, plural: str, name: str, options: Manifest) -> Manifest:
        with self.changed:
            found = self.objects.get((plural, name))
            if found is None:
                raise Refusal(404, f'{plural} "{name}" not found')
            if plural == "pods":
                self.delete_pod(found, options["gracePeriodSeconds"])
            else:
                assert options["propagationPolicy"] == "Foreground"
                found["metadata"].setdefault("deletionTimestamp", _timestamp())
                for pod in self._pods_of(name):
                    self.delete_pod(pod, pod["spec"]["terminationGracePeriodSeconds"])
                self._collect()
            return found

    def delete_pod(self, pod: Manifest, grace: float) -> None:
        """Marks a pod and tells its kubelet; a grace of 0 forgets it at once."""
        name = pod["metadata"]["name"]
        with self.changed:
            pod["metadata"].setdefault("deletionTimestamp", _timestamp(time.time() + grace))
            lost = pod["spec"].get("nodeName") in self._lost_nodes
            container = self.containers.get(name)
            if container is not None and not lost:
                container.stop(grace)
            if grace == 0 or (container is None and not lost):
                self.objects.pop(("pods", name), None)
            self._collect()

    def log(self, name: str) -> bytes:
        with self.lock:
            pod = self.objects.get(("pods", name))
            if pod is None:
                raise Refusal(404, f'pods "{name}" not found')
            path = self.folder / f"{name}.log"
            if not path.exists():
                raise Refusal(400, f'container "worker" in pod "{name}" is waiting to start')
            return path.read_bytes()

    # What the controllers and the kubelets do.

    def _start_jobset(self, jobset: Manifest) -> None:
        name, (part,) = jobset["metadata"]["name"], jobset["spec"]["replicatedJobs"]
        owner = [{"kind": "JobSet", "name": name, "uid": jobset["metadata"]["uid"]}]
        self.put("services", {"metadata": {"name": name, "ownerReferences": owner}})
        child = f"{name}-{part['name']}-0"
        template = part["template"]["spec"]["template"]["spec"]
        template["subdomain"] = name
        job = {"metadata": {"name": child, "ownerReferences": owner}, "status": {}}
        job["spec"] = part["template"]["spec"]
        self.put("jobs", job)
        self._start_job(job)

    def _start_job(self, job: Manifest) -> None:
        if self.suspended:
            message = "waits for its turn in the queue"
            self._condition(job, "Suspended", "JobSuspended", message)
            return
        owners = [owner["name"] for owner in job["metadata"].get("ownerReferences", ())]
        for index in range(job["spec"]["completions"]):
            name = f"{job['metadata']['name']}-{index}-{uuid.uuid4().hex[:5]}"
            template = job["spec"]["template"]
            pod = {
                "metadata": {
                    "name": name,
                    "labels": template["metadata"]["labels"],
                    "annotations": {INDEX: str(index)},
                    "creationTimestamp": _timestamp(),
                },
                "spec": {**template["spec"], "hostname": f"{job['metadata']['name']}-{index}"},
                "status": {"phase": "Pending"},
                "owners": [job["metadata"]["name"], *owners],
            }
            self.put("pods", pod)
        for pod in self._pods_of(job["metadata"]["name"]):
            self._start_pod(pod)

    def _start_pod(self, pod: Manifest) -> None:
        (container,) = pod["spec"]["containers"]
        name, status = pod["metadata"]["name"], pod["status"]
        if self.no_room is not None:
            condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
            status["conditions"] = [{**condition, "message": self.no_room}]
            return
        pod["spec"]["nodeName"] = f"node-{pod['metadata']['annotations'][INDEX]}"
        state: Manifest = {"running": {"startedAt": _timestamp()}}
        if container["image"] in self.broken_images:
            message = self.broken_images[container["image"]]
            state = {"waiting": {"reason": "ImagePullBackOff", "message": message}}
        status["containerStatuses"] = [{"name": container["name"], "state": state}]
        if "running" in state:
            status["phase"] = "Running"
            variables = self._variables(pod, container)
            log = self.folder / f"{name}.log"
            self.containers[name] = Container(container["command"], variables, log)
            self.containers[name].watch(lambda code: self._ended(pod, code))

    def _variables(self, pod: Manifest, container: Manifest) -> dict[str, str]:
        """The environment of a container; the names of its job's pods become this machine."""
        found = {}
        for one in container["env"]:
            if "value" in one:
                found[one["name"]] = one["value"].replace("$$(", "$(")
            else:
                path = one["valueFrom"]["fieldRef"]["fieldPath"]
                found[one["name"]] = pod["metadata"]["annotations"][path.split("'")[1]]
        host, _, port = found.get("MARIN_COORDINATOR", "").partition(":")
        names = [f"{one['spec']['hostname']}.{one['spec']['subdomain']}" for one in self.pods()]
        if host in names:
            (given,) = [one["containerPort"] for one in container["ports"]]
            assert port == str(given)
            found["MARIN_COORDINATOR"] = f"127.0.0.1:{self._ports.setdefault(host, free_port())}"
        return found

    def _ended(self, pod: Manifest, code: int) -> None:
        name = pod["metadata"]["name"]
        with self.changed:
            self.containers.pop(name)
            if pod["spec"]["nodeName"] in self._lost_nodes:
                return
            reason = "OOMKilled" if pod.get("oom") else "Error" if code else "Completed"
            ended = {"exitCode": code, "reason": reason, "finishedAt": _timestamp()}
            pod["status"]["containerStatuses"][0]["state"] = {"terminated": ended}
            pod["status"]["phase"] = "Failed" if code else "Succeeded"
            job = self.objects.get(("jobs", pod["owners"][0]))
            if job is not None:
                self._job_controller(job)
            if "deletionTimestamp" in pod["metadata"]:
                self.objects.pop(("pods", name), None)
            self._collect()

    def _job_controller(self, job: Manifest) -> None:
        """Completes a job, or fails it: at the first pod that fails the others are deleted."""
        mine = self._pods_of(job["metadata"]["name"])
        phases = [pod["status"]["phase"] for pod in mine]
        have = {one["type"]: one for one in job["status"].get("conditions", ())}
        failed = [pod for pod in mine if pod["status"]["phase"] == "Failed"]
        if failed and "FailureTarget" not in have:
            self._condition(job, "FailureTarget", *_why(failed[0]))
            for pod in mine:
                if pod["status"]["phase"] == "Running":
                    self.delete_pod(pod, pod["spec"]["terminationGracePeriodSeconds"])
            return self._job_controller(job)
        if "Running" in phases or "Failed" in have or "Complete" in have:
            return None
        if "FailureTarget" in have:
            why = have["FailureTarget"]["reason"], have["FailureTarget"]["message"]
            self._finish(job, "Failed", "Failed", *why)
        elif phases.count("Succeeded") == job["spec"]["completions"]:
            self._finish(job, "Complete", "Completed", "CompletionsReached", "all have succeeded")
        return None

    def _finish(self, job: Manifest, kind: str, kind_of_set: str, reason: str, words: str) -> None:
        self._condition(job, kind, reason, words)
        for owner in job["metadata"].get("ownerReferences", ()):
            jobset = self.objects.get(("jobsets", owner["name"]))
            if jobset is not None:
                self._condition(jobset, kind_of_set, "FailedJobs", f"{reason}: {words}")

    def _condition(self, found: Manifest, kind: str, reason: str, message: str) -> None:
        condition = {"type": kind, "status": "True", "reason": reason, "message": message}
        found["status"].setdefault("conditions", []).append(condition)
        self.changed.notify_all()

    def _collect(self) -> None:
        """Forgets what is being deleted once nothing depends on it, and then what it owned."""
        for key, found in list(self.objects.items()):
            if "deletionTimestamp" not in found["metadata"] or key[0] == "pods":
                continue
            if not self._pods_of(key[1]):
                del self.objects[key]
                for owned, one in list(self.objects.items()):
                    for owner in one["metadata"].get("ownerReferences", ()):
                        if owner["uid"] == found["metadata"]["uid"]:
                            del self.objects[owned]
        self.changed.notify_all()


def validate(manifest: Manifest) -> None:
    """What schemas and admission say against a manifest, raised as Refusal."""
    kind = manifest["kind"]
    try:
        if kind == "JobSet":
            jsonschema.validate(manifest, JOBSET)
            for part in manifest["spec"]["replicatedJobs"]:
                job = {"apiVersion": "batch/v1", "kind": "Job", **part["template"]}
                validate({**job, "metadata": {"name": f"{manifest['metadata']['name']}-slice-0"}})
        else:
            assert kind in SCHEMAS
            kubernetes_validate.validate(manifest, VERSION, strict=True)
    except (jsonschema.ValidationError, kubernetes_validate.ValidationError) as error:
        raise Refusal(422, f"{kind} is invalid: {error.message}") from error
    metadata = manifest.get("metadata", {})
    if "name" in metadata and not NAME.fullmatch(metadata["name"]):
        raise Refusal(422, f"{metadata['name']!r} is no name")
    for label in metadata.get("labels", {}).values():
        if not LABEL.fullmatch(label):
            raise Refusal(422, f"{label!r} is no value of a label")
    if kind == "Job":
        _admit_job(manifest)


def _admit_job(job: Manifest) -> None:
    """The rules of Indexed Jobs that no schema has."""
    spec, pod = job["spec"], job["spec"]["template"]["spec"]
    if spec["completionMode"] != "Indexed" or pod["restartPolicy"] != "Never":
        raise Refusal(422, "a podFailurePolicy needs restartPolicy Never")
    if len(f"{job['metadata']['name']}-{spec['completions'] - 1}-abcde") > 63:
        raise Refusal(422, f"the pods of {job['metadata']['name']} have names of more than 63")
    volumes = {volume["name"] for volume in pod["volumes"]}
    for container in pod["containers"]:
        names = [one["name"] for one in container["env"]]
        if len(names) != len(set(names)):
            raise Refusal(422, "a variable is given twice")
        for mount in container["volumeMounts"]:
            if mount["name"] not in volumes:
                raise Refusal(422, f"volumeMounts[{mount['name']}] is not found")


def _why(pod: Manifest) -> tuple[str, str]:
    name = f"lab/{pod['metadata']['name']}"
    if any(one["type"] == "DisruptionTarget" for one in pod["status"].get("conditions", ())):
        rule = "has condition DisruptionTarget matching FailJob rule at index 0"
        return "PodFailurePolicy", f"Pod {name} {rule}"
    return "BackoffLimitExceeded", "Job has reached the specified backoff limit"


def _timestamp(seconds: float | None = None) -> str:
    found = time.time() if seconds is None else seconds
    return datetime.datetime.fromtimestamp(found, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@contextlib.contextmanager
def kubernetes_server(folder: Path) -> Iterator[FakeKubernetes]:
    """A cluster; at its end all its processes are killed."""
    folder.mkdir()
    fake = FakeKubernetes(folder)
    fake.start()
    try:
        yield fake
    finally:
        fake.stop()
        with fake.lock:
            for container in fake.containers.values():
                container.kill()
        shutil.rmtree(folder)
