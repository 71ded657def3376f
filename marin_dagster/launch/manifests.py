"""Turns a job and a cluster's settings into what Kubernetes is asked for. Pure: no cluster is read.

Hosts with GPUs or CPUs are the pods of an Indexed Job behind a headless Service, hosts of a TPU
slice those of a JobSet. Nothing is ever restarted: new tries belong to whoever submits.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from marin_dagster.launch.base import Job
from marin_dagster.launch.names import digest_of, dns_label

PORT = 8476  # where process 0 listens
CONTAINER = "worker"
SLICE = "slice"  # the one replicated job of a JobSet
PROCESS = "batch.kubernetes.io/job-completion-index"
NAME_LABEL = "marin-dagster/job"  # on the job and its pods
DIGEST = "marin-dagster/digest"
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
TPU, GPU = "google.com/tpu", "nvidia.com/gpu"
TPU_LABEL = "cloud.google.com/gke-tpu-accelerator"
TOPOLOGY_LABEL = "cloud.google.com/gke-tpu-topology"
NODE_POOL = "cloud.google.com/gke-nodepool"
SLUG_CHARACTERS = 28  # of 63: a JobSet appends -slice-0-<process>-<five letters>

Manifest = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Folder:
    """A folder that all pods share, from a PersistentVolumeClaim or, on GKE, from a bucket."""

    path: str
    claim: str | None = None
    bucket: str | None = None

    def __post_init__(self) -> None:
        if (self.claim is None) == (self.bucket is None):
            raise ValueError(
                f"the folder {self.path} comes from claim={self.claim!r} and "
                f"bucket={self.bucket!r}; give exactly one of them"
            )


@dataclass(frozen=True, kw_only=True)
class KubernetesSettings:
    """What a cluster asks of a job, and how patient the launcher is.

    `accelerator_label` is the label of nodes that HostType.accelerator is a value of, and
    `accelerator_resource` what such a node counts; a slice of TPUs has GKE's own. `secrets` become
    environment variables. A pod that is told to end has `grace_seconds` for it, to save what it
    has; one that is cancelled has at most `cancel_grace_seconds`. `kubeconfig` and `context` name
    the cluster; without a file it is that of the pod this process runs in, or of ~/.kube/config.
    """

    namespace: str
    image: str
    queue: str | None = None  # of Kueue
    service_account: str | None = None
    image_pull_secrets: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()
    folders: tuple[Folder, ...] = ()
    accelerator_label: str = "cloud.google.com/gke-accelerator"
    accelerator_resource: str = GPU
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Mapping[str, Any], ...] = ()
    shared_memory_bytes: int = 8 * 2**30  # of /dev/shm
    grace_seconds: int = 60
    cancel_grace_seconds: int = 8
    image_seconds: float = 300.0  # for an image that cannot be pulled
    poll_seconds: float = 2.0  # between two questions about one job
    patience_seconds: float = 60.0  # for an API server that does not answer a submission
    nodes_may_appear: bool = False  # an autoscaler adds nodes of a type of which there is none
    kubeconfig: str | None = None
    context: str | None = None


def name_of(job: Job, settings: KubernetesSettings) -> str:
    """A name for this job alone: whoever submits it again, finds it."""
    return dns_label(job, _digest(job, settings), most=SLUG_CHARACTERS)


def _digest(job: Job, settings: KubernetesSettings) -> str:
    return digest_of(job, settings.image)


def is_slice(job: Job) -> bool:
    return job.host.topology is not None


def job_manifest(job: Job, settings: KubernetesSettings) -> Manifest:
    """A Job, or a JobSet for a slice of TPUs; raises ValueError for hosts that there cannot be."""
    name = name_of(job, settings)
    coordinator = f"{name}-0.{name}:{PORT}"
    if is_slice(job):
        _check_slice(job)
        coordinator = f"{name}-{SLICE}-0-0.{name}:{PORT}"
    pod = _pod(job, settings, coordinator)
    if not is_slice(job):
        pod["spec"]["subdomain"] = name
        return {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": _metadata(job, settings, name),
            "spec": _indexed(job.processes, pod),
        }
    template = {"spec": _indexed(job.processes, pod)}
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": _metadata(job, settings, name)
        | {"annotations": {"alpha.jobset.sigs.k8s.io/exclusive-topology": NODE_POOL}},
        "spec": {
            "failurePolicy": {"maxRestarts": 0},
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
            "replicatedJobs": [{"name": SLICE, "replicas": 1, "template": template}],
        },
    }


def service_manifest(name: str, owner: Mapping[str, Any]) -> Manifest:
    """The Service by which pods of a Job find process 0, also before it is ready.

    It belongs to the Job, of which `owner` is the metadata, and goes with it.
    """
    job = {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": owner["uid"]}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": name,
            "namespace": owner["namespace"],
            "labels": {NAME_LABEL: name},
            "ownerReferences": [job],
        },
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {NAME_LABEL: name},
            "ports": [{"name": "coordinator", "port": PORT}],
        },
    }


def node_labels(job: Job, settings: KubernetesSettings) -> dict[str, str]:
    """The labels of the nodes on which the job can run."""
    host, labels = job.host, dict(settings.node_selector)
    if host.topology is not None:
        labels |= {TPU_LABEL: host.accelerator, TOPOLOGY_LABEL: host.topology}
    elif host.accelerators:
        labels[settings.accelerator_label] = host.accelerator
    return labels


def _metadata(job: Job, settings: KubernetesSettings, name: str) -> Manifest:
    labels = {NAME_LABEL: name, DIGEST: _digest(job, settings)}
    if settings.queue is not None:
        labels[QUEUE_LABEL] = settings.queue
    return {"name": name, "namespace": settings.namespace, "labels": labels}


def _indexed(processes: int, pod: Manifest) -> Manifest:
    disrupted = [{"type": "DisruptionTarget", "status": "True"}]
    return {
        "completionMode": "Indexed",
        "completions": processes,
        "parallelism": processes,
        "backoffLimit": 0,
        "podFailurePolicy": {"rules": [{"action": "FailJob", "onPodConditions": disrupted}]},
        "template": pod,
    }


def _pod(job: Job, settings: KubernetesSettings, coordinator: str) -> Manifest:
    resource = TPU if is_slice(job) else settings.accelerator_resource
    shm = {"medium": "Memory", "sizeLimit": str(settings.shared_memory_bytes)}
    spec: Manifest = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": settings.grace_seconds,
        "containers": [_container(job, settings, coordinator, resource)],
        "volumes": [
            {"name": "shm", "emptyDir": shm},
            *(_volume(number, folder) for number, folder in enumerate(settings.folders)),
        ],
    }
    tolerations = [dict(one) for one in settings.tolerations]
    if job.host.accelerators:
        tolerations.append({"key": resource, "operator": "Exists", "effect": "NoSchedule"})
    optional = {
        "nodeSelector": node_labels(job, settings),
        "tolerations": tolerations,
        "serviceAccountName": settings.service_account,
        "imagePullSecrets": [{"name": name} for name in settings.image_pull_secrets],
    }
    spec |= {key: value for key, value in optional.items() if value}
    metadata: Manifest = {"labels": {NAME_LABEL: name_of(job, settings)}}
    if any(folder.bucket for folder in settings.folders):
        metadata["annotations"] = {"gke-gcsfuse/volumes": "true"}
    return {"metadata": metadata, "spec": spec}


def _container(job: Job, settings: KubernetesSettings, coordinator: str, resource: str) -> Manifest:
    host = job.host
    process = {"fieldRef": {"fieldPath": f"metadata.annotations['{PROCESS}']"}}
    variables = {**job.environment, "MARIN_PROCESSES": str(job.processes)}
    if job.processes > 1:
        variables["MARIN_COORDINATOR"] = coordinator
    amounts = {resource: host.accelerators, "cpu": host.cpus, "memory": host.memory_bytes}
    requests = {key: str(amount) for key, amount in amounts.items() if amount}
    # What is exceeded ends the process; more processor time than was asked for is nobody's loss.
    limits = {key: amount for key, amount in requests.items() if key != "cpu"}
    return {
        "name": CONTAINER,
        "image": settings.image,
        "command": [*job.command],
        "env": [
            {"name": "MARIN_PROCESS", "valueFrom": process},
            *({"name": key, "value": _plain(value)} for key, value in variables.items()),
        ],
        "envFrom": [{"secretRef": {"name": name}} for name in settings.secrets],
        "ports": [{"name": "coordinator", "containerPort": PORT}],
        "resources": {"requests": requests, "limits": limits},
        "volumeMounts": [
            {"name": "shm", "mountPath": "/dev/shm"},
            *(
                {"name": f"folder-{number}", "mountPath": folder.path}
                for number, folder in enumerate(settings.folders)
            ),
        ],
    }


def _plain(value: str) -> str:
    """A value in which Kubernetes finds no $(NAME) to put something in for."""
    return value.replace("$(", "$$(")


def _volume(number: int, folder: Folder) -> Manifest:
    name = f"folder-{number}"
    if folder.claim is not None:
        return {"name": name, "persistentVolumeClaim": {"claimName": folder.claim}}
    attributes = {"bucketName": folder.bucket, "mountOptions": "implicit-dirs"}
    driver = {"driver": "gcsfuse.csi.storage.gke.io", "volumeAttributes": attributes}
    return {"name": name, "csi": driver}


def _check_slice(job: Job) -> None:
    hosts = slice_hosts(job.host.topology or "", job.host.accelerators)
    if hosts != job.processes:
        raise ValueError(
            f"processes={job.processes}, but a slice of {job.host.topology} with "
            f"{job.host.accelerators} chips in each host has {hosts} hosts; a job has one process "
            "for each host of one slice"
        )


def slice_hosts(topology: str, chips: int) -> int:
    """Hosts of a slice that is wired as `topology`, as 4x4, with `chips` in each host."""
    sides = topology.split("x")
    if not all(side.isdigit() for side in sides) or chips < 1:
        raise ValueError(
            f"topology={topology!r} with {chips} chips in each host is no slice; write it as 4x4, "
            "and give the host its accelerators"
        )
    return max(1, math.prod(map(int, sides)) // chips)
