"""Turns a job into pods of a Kubernetes cluster, such as GKE. Needs the extra `kubernetes`.

Everything belongs to one Job or JobSet, and goes with it. Its name carries a digest of the job, so
a job that is submitted again, because the answer was lost or the submitter died, is found.
"""

import json
import math
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import kubernetes
import urllib3
from kubernetes.client import ApiException
from kubernetes.stream import stream

from marin_dagster.launch.base import Job, JobState
from marin_dagster.launch.kubernetes_checks import missing
from marin_dagster.launch.manifests import (
    CONTAINER,
    DIGEST,
    NAME_LABEL,
    KubernetesSettings,
    is_slice,
    job_manifest,
    name_of,
    service_manifest,
)
from marin_dagster.launch.pods import Object, fails, process_of, state_of
from marin_dagster.recipe import StageError
from marin_dagster.storage import Storage

CALL_SECONDS = 20.0
TRY_AGAIN = (408, 429, 500, 502, 503, 504)
FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 0.2, 5.0
FORCE_SECONDS = 3.0  # after the grace of a cancel: what is there still, nobody ends any more
GONE_SECONDS = 3.0  # for what was forced
STEP_SECONDS = 0.25  # of waiting for that
JOBSETS = {"group": "jobset.x-k8s.io", "version": "v1alpha2", "plural": "jobsets"}


class Away(Exception):
    """The API server did not answer, or is too busy."""


@dataclass(frozen=True, kw_only=True)
class _Handle:
    name: str
    slice: bool
    logs: str
    processes: int

    @classmethod
    def of(cls, handle: str) -> "_Handle":
        return cls(**json.loads(handle))


class KubernetesLauncher:
    """Submits jobs to one namespace of a cluster.

    The API server may be away for a while: a job that runs goes on, and `state` calls it not done.
    """

    def __init__(self, settings: KubernetesSettings):
        self._settings = settings
        self._known: dict[str, tuple[float, JobState]] = {}  # by handle; when it was asked
        self._seen: dict[str, dict[str, Object]] = {}  # by job and pod: what is gone says why

    def preflight(self, job: Job) -> list[str]:
        """What is missing: the API server, rights, the namespace, queue, image and nodes."""
        try:
            job_manifest(job, self._settings)
            return missing(self._client, job, self._settings)
        except ValueError as error:
            return [str(error)]
        except (kubernetes.config.ConfigException, OSError) as error:
            return [f"no cluster is configured: {error}; set a kubeconfig, or run in a cluster"]
        except urllib3.exceptions.HTTPError as error:
            where = self._client.configuration.host
            return [f"the API server at {where} does not answer: {error}; see whether it runs"]

    def submit(self, job: Job) -> str:
        """Starts the job, or finds it if the same job was submitted before; returns its handle.

        Raises StageError with the server's own words when it refuses, and when it does not answer
        for `patience_seconds`.
        """
        manifest = job_manifest(job, self._settings)
        name = name_of(job, self._settings)
        handle = _Handle(name=name, slice=is_slice(job), logs=job.logs, processes=job.processes)
        made = self._patiently(handle, lambda: self._create_job(handle, manifest))
        if not handle.slice:  # a JobSet makes its own
            service = service_manifest(name, self._settings.namespace, made["metadata"]["uid"])
            self._patiently(handle, lambda: self._create_service(service))
        return json.dumps(handle.__dict__)

    def state(self, handle: str) -> JobState:
        """Asks the API server, at most every `poll_seconds`."""
        asked, known = self._known.get(handle, (-math.inf, JobState(done=False)))
        if known.done or time.monotonic() - asked < self._settings.poll_seconds:
            return known
        try:
            known = self._state(_Handle.of(handle))
        except Away as error:
            known = JobState(done=False, waits=str(error))
        except ApiException as error:
            raise _refusal(_Handle.of(handle).name, error) from error
        self._known[handle] = time.monotonic(), known
        return known

    def dump_stacks(self, handle: str) -> None:
        """Sends SIGUSR1 to the first process of every container that runs."""
        found = _Handle.of(handle)
        pods = [pod for pod in self._patiently(found, lambda: self._pods(found)) if _runs(pod)]
        core = kubernetes.client.CoreV1Api(self._new_client())  # `stream` changes its client
        for pod in pods:
            try:
                stream(
                    core.connect_get_namespaced_pod_exec,
                    pod["metadata"]["name"],
                    self._settings.namespace,
                    container=CONTAINER,
                    command=["sh", "-c", "kill -USR1 1"],
                    stdout=True,
                    stderr=True,
                    _request_timeout=CALL_SECONDS,
                )
            except ApiException:  # it has ended meanwhile, or its node is lost: others may answer
                continue

    def cancel(self, handle: str) -> None:
        """Saves all logs, then deletes the job; returns when job, pods and service are gone.

        What has not ended after `cancel_grace_seconds` is deleted by force. Raises StageError when
        something is left even then.
        """
        found = _Handle.of(handle)
        self._patiently(found, lambda: self._save_logs(found, self._pods(found)))
        grace = self._settings.cancel_grace_seconds
        self._patiently(found, lambda: self._delete(found, grace))
        forced, started = False, time.monotonic()
        while left := self._patiently(found, lambda: self._left(found)):
            spent = time.monotonic() - started
            if spent > grace + FORCE_SECONDS and not forced:
                forced = True
                self._patiently(found, lambda: self._delete(found, 0))
            if spent > grace + FORCE_SECONDS + GONE_SECONDS:
                raise StageError(
                    "error",
                    f"{', '.join(left)} of {found.name} are still there {spent:.0f} s after they "
                    "were deleted; see what `kubectl describe` says of them, and cancel again",
                    {"left": left},
                )
            time.sleep(STEP_SECONDS)

    def logs(self, handle: str, process: int = 0, lines: int = 50) -> list[str]:
        """The last lines of a process: of its pod, or of the log that was saved before it went."""
        found = _Handle.of(handle)
        for pod in self._patiently(found, lambda: self._pods(found)):
            if process_of(pod) == process:
                text = self._patiently(found, partial(self._log, pod, tail_lines=lines))
                if text is not None:
                    return text.decode(errors="replace").splitlines()
        saved = Storage(found.logs).read(f"{process:04d}.log") or b""
        return saved.decode(errors="replace").splitlines()[-lines:]

    # What the API server is asked. All of it raises Away, and StageError when it refuses.

    def _state(self, found: _Handle) -> JobState:
        job = self._read_job(found)
        if job is None:
            return JobState(done=True, evidence={"kubernetes": f"there is no {found.name}"})
        pods = self._pods(found)
        seen = self._seen.setdefault(found.name, {})
        seen |= {pod["metadata"]["name"]: pod for pod in pods}
        if fails(job, pods):  # the pods of other processes will be deleted, and their logs too
            self._save_logs(found, pods)
        limit = self._settings.image_seconds
        state = state_of(job, [*seen.values()], image_seconds=limit, now=time.time())
        if state.waits is None:
            return state
        names = [found.name, *(pod["metadata"]["name"] for pod in pods if not _runs(pod))]
        warning = None if "Unschedulable" in state.waits else self._warning(names)
        return replace(state, waits=f"{state.waits}; {warning}") if warning else state

    def _create_job(self, found: _Handle, manifest: Object) -> Object:
        """Creates the job, or returns the one that is there already."""
        namespace = self._settings.namespace
        try:
            if found.slice:
                return self._call(
                    self._custom.create_namespaced_custom_object,
                    namespace=namespace,
                    body=manifest,
                    **JOBSETS,
                )
            return self._call(self._batch.create_namespaced_job, namespace, manifest)
        except ApiException as error:
            if error.status != 409:
                raise
        made = self._read_job(found)
        if made is None or "deletionTimestamp" in made["metadata"]:
            raise Away(f"the {found.name} of an earlier submission is being deleted")
        if made["metadata"]["labels"].get(DIGEST) != manifest["metadata"]["labels"][DIGEST]:
            raise StageError(
                "error", f"{found.name} exists and is another's; delete it, or rename this job"
            )
        return made

    def _create_service(self, manifest: Object) -> None:
        try:
            self._call(self._core.create_namespaced_service, self._settings.namespace, manifest)
        except ApiException as error:
            if error.status != 409:
                raise

    def _read_job(self, found: _Handle) -> Object | None:
        namespace = self._settings.namespace
        if found.slice:
            read = self._custom.get_namespaced_custom_object
            return self._find(read, name=found.name, namespace=namespace, **JOBSETS)
        return self._find(self._batch.read_namespaced_job, found.name, namespace)

    def _pods(self, found: _Handle) -> list[Object]:
        selector = f"{NAME_LABEL}={found.name}"
        listing = self._call(
            self._core.list_namespaced_pod, self._settings.namespace, label_selector=selector
        )
        return sorted(listing["items"], key=process_of)

    def _left(self, found: _Handle) -> list[str]:
        """What there still is of a job that was deleted."""
        left = [f"pod {pod['metadata']['name']}" for pod in self._pods(found)]
        if self._read_job(found) is not None:
            left.append("JobSet" if found.slice else "Job")
        read = self._core.read_namespaced_service
        if self._find(read, found.name, self._settings.namespace) is not None:
            left.append("Service")
        return left

    def _delete(self, found: _Handle, grace: int) -> None:
        """Deletes the job, with all that belongs to it, and gives its pods `grace` seconds."""
        namespace = self._settings.namespace
        options = {"propagationPolicy": "Foreground"}
        if found.slice:
            delete = self._custom.delete_namespaced_custom_object
            self._find(delete, name=found.name, namespace=namespace, body=options, **JOBSETS)
        else:
            self._find(self._batch.delete_namespaced_job, found.name, namespace, body=options)
        for pod in self._pods(found):
            options = {"gracePeriodSeconds": grace}
            name = pod["metadata"]["name"]
            self._find(self._core.delete_namespaced_pod, name, namespace, body=options)

    def _save_logs(self, found: _Handle, pods: list[Object]) -> None:
        storage = Storage(found.logs)
        for pod in pods:
            text, name = self._log(pod), f"{process_of(pod):04d}.log"
            if text is not None and len(text) >= (storage.size(name) or 0):
                storage.write(name, text)

    def _log(self, pod: Object, **options: Any) -> bytes | None:
        """What a pod printed; None when it has not begun, or is gone."""
        name, read = pod["metadata"]["name"], self._core.read_namespaced_pod_log
        try:
            return self._answer(
                read, name, self._settings.namespace, container=CONTAINER, **options
            )
        except ApiException as error:
            if error.status in (400, 404):
                return None
            raise

    def _warning(self, names: list[str]) -> str | None:
        """The last warning about one of these objects, in the words of who gave it."""
        listing = self._find(
            self._core.list_namespaced_event,
            self._settings.namespace,
            field_selector="type=Warning",
        )
        events = [
            one
            for one in (listing or {}).get("items", ())
            if one["involvedObject"]["name"] in names
        ]
        last = max(events, key=lambda one: one.get("lastTimestamp") or "", default=None)
        return f"{last.get('reason')}: {last.get('message')}" if last else None

    def _find(self, method: Callable[..., Any], *args: Any, **options: Any) -> Object | None:
        """What a method answers; None when there is no such thing."""
        try:
            return self._call(method, *args, **options)
        except ApiException as error:
            if error.status != 404:
                raise
            return None

    def _call(self, method: Callable[..., Any], *args: Any, **options: Any) -> Object:
        return json.loads(self._answer(method, *args, **options))

    def _answer(self, method: Callable[..., Any], *args: Any, **options: Any) -> bytes:
        try:
            options = {"_preload_content": False, "_request_timeout": CALL_SECONDS, **options}
            return method(*args, **options).data
        except ApiException as error:
            if error.status in TRY_AGAIN:
                raise Away(f"the API server is busy: {_words(error)}") from error
            raise
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise Away(f"the API server does not answer: {error}") from error

    def _patiently(self, found: _Handle, call: Callable[[], Any]) -> Any:
        """Calls until there is an answer; raises StageError when it is no, or comes too late."""
        limit = self._settings.patience_seconds
        deadline = time.monotonic() + limit
        for wait in _waits():
            try:
                return call()
            except ApiException as error:
                raise _refusal(found.name, error) from error
            except Away as error:
                if time.monotonic() + wait > deadline:
                    message = f"{found.name}: {error}, for {limit:g} s; see whether it runs"
                    raise StageError("error", message) from error
            time.sleep(wait)

    @cached_property
    def _client(self) -> Any:
        return self._new_client()

    def _new_client(self) -> Any:
        settings, found = self._settings, kubernetes.client.Configuration()
        if settings.kubeconfig is None and settings.context is None:
            kubernetes.config.load_config(client_configuration=found)
        else:
            kubernetes.config.load_kube_config(
                settings.kubeconfig, context=settings.context, client_configuration=found
            )
        found.retries = False  # whether to try again is decided here
        return kubernetes.client.ApiClient(found)

    @cached_property
    def _core(self) -> Any:
        return kubernetes.client.CoreV1Api(self._client)

    @cached_property
    def _batch(self) -> Any:
        return kubernetes.client.BatchV1Api(self._client)

    @cached_property
    def _custom(self) -> Any:
        return kubernetes.client.CustomObjectsApi(self._client)


def _refusal(name: str, error: ApiException) -> StageError:
    return StageError("error", f"the cluster refuses {name}: {_words(error)}")


def _words(error: ApiException) -> str:
    """What the API server said, which it says in JSON."""
    try:
        return json.loads(error.body or "")["message"]
    except (ValueError, KeyError, TypeError):
        return f"{error.status} {error.reason}"


def _runs(pod: Object) -> bool:
    return pod["status"].get("phase") == "Running"


def _waits() -> Iterator[float]:
    """Seconds to wait between tries: random, and longer each time."""
    longest = FIRST_WAIT_SECONDS
    while True:
        yield random.uniform(longest / 2, longest)
        longest = min(longest * 2, LONGEST_WAIT_SECONDS)
