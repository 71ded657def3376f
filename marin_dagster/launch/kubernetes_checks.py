"""Turns a job and a cluster into what is missing there: rights, a namespace, a queue, nodes."""

from collections.abc import Iterator
from typing import Any

import kubernetes
from kubernetes.client import ApiException

from marin_dagster.launch.base import Job
from marin_dagster.launch.manifests import KubernetesSettings, is_slice, node_labels

CALL: dict[str, Any] = {"_request_timeout": 10.0}
QUEUES = {"group": "kueue.x-k8s.io", "version": "v1beta1", "plural": "localqueues"}
FORBIDDEN, ABSENT = 403, 404

# verbs, group and resource, as roles name them
RIGHTS = (
    ("list delete", "", "pods"),
    ("get", "", "pods/log"),
    ("get create", "", "pods/exec"),
    ("list", "", "events"),
)
JOB_RIGHTS = (("create get delete", "batch", "jobs"), ("create get", "", "services"))
SLICE_RIGHTS = (("create get delete", "jobset.x-k8s.io", "jobsets"), ("get", "", "services"))


def missing(client: Any, job: Job, settings: KubernetesSettings) -> list[str]:
    """What stands in the way of the job; asks the cluster, and changes nothing."""
    if not settings.image:
        return ["no image is set; name one that has this project and its dependencies"]
    api: Any = kubernetes.client.VersionApi(client)
    api.get_code(**CALL)
    absent = [*_namespace(client, settings.namespace)]
    if absent:
        return absent
    return [
        *_rights(client, job, settings.namespace),
        *_queue(client, settings),
        *_nodes(client, job, settings),
    ]


def _namespace(client: Any, name: str) -> Iterator[str]:
    try:
        api: Any = kubernetes.client.CoreV1Api(client)
        api.read_namespace(name, **CALL)
    except ApiException as error:
        if error.status == ABSENT:
            yield f"there is no namespace {name!r}; create it, or name another"
        elif error.status != FORBIDDEN:  # who may not read namespaces may still work in one
            raise


def _rights(client: Any, job: Job, namespace: str) -> Iterator[str]:
    api: Any = kubernetes.client.AuthorizationV1Api(client)
    for verbs, group, resource in RIGHTS + (SLICE_RIGHTS if is_slice(job) else JOB_RIGHTS):
        kind, _, part = resource.partition("/")
        for verb in verbs.split():
            asked = {"namespace": namespace, "verb": verb, "group": group, "resource": kind}
            if part:
                asked["subresource"] = part
            review = {
                "apiVersion": "authorization.k8s.io/v1",
                "kind": "SelfSubjectAccessReview",
                "spec": {"resourceAttributes": asked},
            }
            if not api.create_self_subject_access_review(review, **CALL).status.allowed:
                yield f"no right to {verb} {resource} in {namespace}; grant it by a role"


def _queue(client: Any, settings: KubernetesSettings) -> Iterator[str]:
    if settings.queue is None:
        return
    api: Any = kubernetes.client.CustomObjectsApi(client)
    try:
        api.get_namespaced_custom_object(
            name=settings.queue, namespace=settings.namespace, **QUEUES, **CALL
        )
    except ApiException as error:
        if error.status == ABSENT:
            yield f"there is no LocalQueue {settings.queue!r} in {settings.namespace}"
        elif error.status != FORBIDDEN:
            raise


def _nodes(client: Any, job: Job, settings: KubernetesSettings) -> Iterator[str]:
    labels = node_labels(job, settings)
    if not labels or settings.nodes_may_appear:
        return
    selector = ",".join(f"{key}={value}" for key, value in labels.items())
    try:
        api: Any = kubernetes.client.CoreV1Api(client)
        found = api.list_node(label_selector=selector, limit=1, **CALL)
    except ApiException as error:
        if error.status != FORBIDDEN:
            raise
        return
    if not found.items:
        yield (
            f"no node has {selector}; correct the host type {job.host.name!r}, or set "
            "nodes_may_appear where an autoscaler makes such nodes"
        )
