"""Turns what Kubernetes says of a job and its pods into the state of the job."""

import datetime
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from marin_dagster.failure import judge_status
from marin_dagster.launch.base import JobState
from marin_dagster.launch.manifests import CONTAINER, PROCESS

Object = Mapping[str, Any]  # of Kubernetes, as its API writes it

SUCCEEDED, FAILED = ("Complete", "Completed"), ("Failed",)  # of a Job, of a JobSet
NO_IMAGE = ("ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName")
NO_CONTAINER = ("CreateContainerConfigError", "CreateContainerError", "RunContainerError")
LOST_SECONDS = 30.0  # after a pod should be gone; its node does not answer


def state_of(job: Object, pods: Sequence[Object], *, image_seconds: float, now: float) -> JobState:
    """The state of a job; `now` is seconds since 1970.

    A container that cannot be made is waited for `image_seconds`, then it is an error. `pods` may
    have some that are gone meanwhile, as they were.
    """
    ended = {one["type"]: one for one in _true_conditions(job)}
    if any(kind in ended for kind in SUCCEEDED):
        return JobState(done=True, succeeded=True)
    for kind in FAILED:
        if kind in ended:
            return _failed(ended[kind], pods)
    for pod in pods:
        gone_at = pod["metadata"].get("deletionTimestamp")
        rank, reason, evidence = _cause(pod)
        if rank[0] == _DISRUPTED and gone_at and now - seconds_of(gone_at) > LOST_SECONDS:
            return JobState(done=True, reason=reason, evidence=evidence)
        for waiting in _waiting(pod):
            if waiting["reason"] in NO_IMAGE + NO_CONTAINER:
                words = f"{waiting['reason']}: {waiting.get('message', '')}"
                if now - seconds_of(pod["metadata"]["creationTimestamp"]) > image_seconds:
                    evidence = {**place_of(pod), "kubelet": words}
                    return JobState(done=True, reason="error", evidence=evidence)
                return JobState(done=False, waits=f"{pod['metadata']['name']}: {words}")
    return JobState(done=False, waits=_waits(ended, pods))


def fails(job: Object, pods: Sequence[Object]) -> bool:
    """Whether some process has failed, so that Kubernetes ends the others."""
    target = any(one["type"] == "FailureTarget" for one in _true_conditions(job))
    return target or any(pod["status"].get("phase") == "Failed" for pod in pods)


def place_of(pod: Object) -> dict[str, Any]:
    """Evidence: which process a pod is, its name and its node."""
    place = {"process": process_of(pod), "pod": pod["metadata"]["name"]}
    node = pod["spec"].get("nodeName")
    return place | ({"node": node} if node else {})


def process_of(pod: Object) -> int:
    return int(pod["metadata"].get("annotations", {}).get(PROCESS, 0))


def seconds_of(timestamp: str) -> float:
    return datetime.datetime.fromisoformat(timestamp.replace("Z", "+00:00")).timestamp()


def _failed(condition: Object, pods: Sequence[Object]) -> JobState:
    """The pod that failed first is why; others were ended because of it.

    A pod that is gone, or was never there, has left only what the job says, and that names it.
    """
    causes = sorted((_cause(pod) for pod in pods), key=lambda cause: cause[0])
    if causes and causes[0][0][0] < _NOT_FAILED:
        _, reason, evidence = causes[0]
        return JobState(done=True, reason=reason, evidence=evidence)
    words = f"{condition.get('reason', '')}: {condition.get('message', '')}"
    reason = "preempted" if "DisruptionTarget" in words else "killed"
    place = next((place_of(pod) for pod in pods if pod["metadata"]["name"] in words), {})
    return JobState(done=True, reason=reason, evidence={**place, "kubernetes": words})


_DISRUPTED, _EXITED, _NOT_FAILED = 0, 1, 2


def _cause(pod: Object) -> tuple[tuple[int, float, bool, int], str, dict[str, Any]]:
    """How likely the pod is the cause (least is most), its reason and its evidence."""
    process, place = process_of(pod), place_of(pod)
    for one in _true_conditions(pod):
        if one["type"] == "DisruptionTarget":
            words = f"{one.get('reason', '')}: {one.get('message', '')}"
            return (_DISRUPTED, 0.0, False, process), "preempted", {**place, "kubernetes": words}
    ended = _terminated(pod)
    if pod["status"].get("phase") != "Failed" or ended is None:
        return (_NOT_FAILED, 0.0, False, process), "killed", place
    code = ended["exitCode"]
    if ended.get("reason") == "OOMKilled":
        reason, evidence = "oom", {"exit_code": code, "kubelet": "OOMKilled"}
    else:
        reason, evidence = judge_status(code)
    finished = seconds_of(ended["finishedAt"]) if ended.get("finishedAt") else 0.0
    rank = (_EXITED, finished, reason == "preempted", process)  # finished is in whole seconds
    return rank, reason, {**evidence, **place}


def _waits(ended: Mapping[str, Object], pods: Sequence[Object]) -> str | None:
    if "Suspended" in ended:
        message = ended["Suspended"].get("message", "")
        return f"suspended, until its queue has room: {message}"
    for pod in pods:
        for one in pod["status"].get("conditions", ()):
            if one["type"] == "PodScheduled" and one["status"] == "False":
                words = f"{one.get('reason', '')}: {one.get('message', '')}"
                return f"{pod['metadata']['name']}: {words}"
    for pod in pods:
        if pod["status"].get("phase") == "Pending":
            reasons = [waiting["reason"] for waiting in _waiting(pod)]
            return f"{pod['metadata']['name']}: {', '.join(reasons) or 'Pending'}"
    return None if pods else "no pod yet"


def _true_conditions(found: Object) -> list[Object]:
    conditions = found.get("status", {}).get("conditions", ())
    return [one for one in conditions if one.get("status") == "True"]


def _waiting(pod: Object) -> Iterator[Object]:
    """What containers wait for, those that others need before theirs."""
    for key in ("initContainerStatuses", "containerStatuses"):
        for container in pod["status"].get(key, ()):
            if "reason" in container["state"].get("waiting", {}):
                yield container["state"]["waiting"]


def _terminated(pod: Object) -> Object | None:
    for container in pod["status"].get("containerStatuses", ()):
        if container["name"] == CONTAINER:
            return container["state"].get("terminated")
    return None
