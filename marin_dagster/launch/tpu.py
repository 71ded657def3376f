"""Turns a job into a slice of TPU VMs, by a queued resource of Cloud TPU. Needs the extra `tpu-vm`.

A resource lives for one attempt and is deleted at its end, however that is: hosts stay, and cost,
when their work is done. How the processes go is in the bucket, in the folder of their logs, where
`tpu_host` writes. The name of a resource carries a digest of the job, so a job that is submitted
again, because the answer was lost or the submitter died, is found.
"""

import json
import time
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from google.api_core import exceptions
from google.api_core.retry import Retry, if_transient_error
from google.auth.credentials import AnonymousCredentials
from google.auth.exceptions import DefaultCredentialsError, GoogleAuthError
from google.cloud import tpu_v2
from google.cloud.tpu_v2.services.tpu.transports.rest import TpuRestTransport

from marin_dagster.failure import judge_status
from marin_dagster.launch.base import Job, JobState
from marin_dagster.launch.polled import Polled
from marin_dagster.launch.tpu_checks import missing
from marin_dagster.launch.tpu_script import DIGEST, TpuSettings, name_of, queued_resource
from marin_dagster.recipe import StageError
from marin_dagster.storage import Storage, StorageError

CALL_SECONDS = 20.0
HOST_SECONDS = 8.0  # in which a host takes notice of an order, and tells
STEP_SECONDS, LONGEST_WAIT_SECONDS = 0.25, 5.0
State = tpu_v2.QueuedResourceState.State
SUSPENDED = (State.SUSPENDING, State.SUSPENDED)
GONE_NODES = (
    tpu_v2.Node.State.PREEMPTED,
    tpu_v2.Node.State.TERMINATED,
    tpu_v2.Node.State.STOPPING,
    tpu_v2.Node.State.STOPPED,
)
ANSWERS = (exceptions.NotFound, exceptions.Conflict, exceptions.FailedPrecondition)


class _Away(Exception):
    """The API did not answer, or is too busy."""


@dataclass(frozen=True, kw_only=True)
class _Handle:
    name: str  # of the queued resource, in full
    logs: str
    processes: int

    @classmethod
    def of(cls, handle: str) -> "_Handle":
        return cls(**json.loads(handle))


class TpuLauncher:
    """Submits jobs to one zone of a project.

    The API may be away for a while: a job that runs goes on, and `state` calls it not done. All
    else raises StageError when it does not answer for `patience_seconds`, and in its own words
    when it refuses.
    """

    def __init__(self, settings: TpuSettings):
        self._settings = settings
        self._opened: tpu_v2.TpuClient | None = None
        self._polled = Polled(settings.poll_seconds)

    def preflight(self, job: Job) -> list[str]:
        """What is missing: credentials, the zone, type and image of the hosts, the bucket.

        Whether the quota suffices is known only when the resource is waited for.
        """
        try:
            return missing(self._client, job, self._settings)
        except DefaultCredentialsError as error:
            return [f"no credentials: {error}; run `gcloud auth application-default login`"]
        except (exceptions.GoogleAPIError, GoogleAuthError, OSError) as error:
            return [f"Cloud TPU does not answer as it should: {error}"]

    def submit(self, job: Job) -> str:
        """Asks for the slice, or finds the one that was asked for before; returns a handle."""
        name, wanted = name_of(job, self._settings), queued_resource(job, self._settings)
        full = f"{self._settings.parent}/queuedResources/{name}"
        request = {"parent": self._settings.parent, "queued_resource_id": name}
        try:
            self._call(
                self._client.create_queued_resource, request={**request, "queued_resource": wanted}
            )
        except exceptions.Conflict:
            self._check_own(full, wanted)
        return json.dumps(asdict(_Handle(name=full, logs=job.logs, processes=job.processes)))

    def state(self, handle: str) -> JobState:
        """Asks the bucket and the API, at most every `poll_seconds`."""
        return self._polled.state(handle, self._ask)

    def dump_stacks(self, handle: str) -> None:
        """Orders all hosts to send SIGUSR1; returns when their logs have the stacks."""
        found, order = _Handle.of(handle), uuid.uuid4().hex
        storage = Storage(found.logs)
        storage.write("order", json.dumps({"do": "stacks", "id": order}).encode())
        names = [f"stacks.{number}" for number in range(found.processes)]
        _wait(lambda: all(storage.read(name) == order.encode() for name in names), HOST_SECONDS)

    def cancel(self, handle: str) -> None:
        """Orders the hosts to end and to save their logs, then deletes the resource.

        Returns when it is gone. Raises StageError when it is not after `delete_seconds`.
        """
        found = _Handle.of(handle)
        try:
            resource = self._resource(found)
            active = resource is not None and resource.state.state == State.ACTIVE
            if active and not self._node_is_gone(found):
                self._stop(found)
        finally:  # also when the bucket cannot be reached
            self._remove(found)

    def logs(self, handle: str, process: int = 0, lines: int = 50) -> list[str]:
        """The last lines of a process, as far as its host has written them to the bucket."""
        saved = Storage(_Handle.of(handle).logs).read(f"{process:04d}.log") or b""
        return saved.decode(errors="replace").splitlines()[-lines:]

    def _ask(self, handle: str) -> JobState:
        try:
            return self._state(_Handle.of(handle))
        except (_Away, StorageError) as error:
            return JobState(done=False, waits=f"Cloud TPU does not answer: {error}")

    def _state(self, found: _Handle) -> JobState:
        storage = Storage(found.logs)
        names = storage.names("")
        exits = [_exit(storage, n) for n in range(found.processes) if f"exit.{n}" in names]
        if len(exits) == found.processes and not any(one["status"] for one in exits):
            return JobState(done=True, succeeded=True)
        resource = self._resource(found, patient=False)
        state = None if resource is None else resource.state.state
        evidence = {"resource": found.name.rpartition("/")[2], "state": state and state.name}
        if state == State.SUSPENDING and len(exits) < found.processes:
            return JobState(done=False)  # the others may be saving
        if state in SUSPENDED or (
            state == State.ACTIVE and self._node_is_gone(found, patient=False)
        ):
            return JobState(done=True, reason="preempted", evidence=evidence)
        failed = [one for one in exits if one["status"]]
        if failed:
            return _failed(min(failed, key=lambda one: one["seconds"]), evidence)
        if resource is None or state is None or state == State.DELETING:
            return JobState(done=True, evidence=evidence)
        if state == State.FAILED:
            words = resource.state.failed_data.error.message
            return JobState(done=True, reason="error", evidence={**evidence, "cloud": words})
        if state != State.ACTIVE:
            return JobState(done=False, waits=f"{evidence['resource']} is {state.name}")
        silent = [n for n in range(found.processes) if f"start.{n}" not in names]
        words = f"hosts {', '.join(map(str, silent))} have not run their start-up script"
        return JobState(done=False, waits=words if silent else None)

    def _remove(self, found: _Handle) -> None:
        resource = self._resource(found)
        started, wait = time.monotonic(), STEP_SECONDS
        while resource is not None:
            if resource.state.state != State.DELETING:
                self._delete(found)
            spent = time.monotonic() - started
            if spent > self._settings.delete_seconds:
                raise StageError(
                    "error",
                    f"{found.name} is still {resource.state.state.name} {spent:.0f} s after it was "
                    "deleted, and costs; delete it with `gcloud compute tpus queued-resources "
                    "delete --force`",
                    {"left": [found.name]},
                )
            time.sleep(wait)
            wait = min(2 * wait, LONGEST_WAIT_SECONDS)  # it takes minutes
            resource = self._resource(found)

    def _stop(self, found: _Handle) -> None:
        """Lets the processes end by themselves, so that their logs are whole."""
        storage, grace = Storage(found.logs), self._settings.cancel_grace_seconds
        exits = {f"exit.{number}" for number in range(found.processes)}
        starts = {f"start.{number}" for number in range(found.processes)}
        names = set(storage.names(""))
        if exits <= names or not starts & names:
            return
        storage.write("order", json.dumps({"do": "stop", "grace_seconds": grace}).encode())
        _wait(lambda: exits <= set(storage.names("")), grace + HOST_SECONDS)

    def _delete(self, found: _Handle) -> None:
        request = tpu_v2.DeleteQueuedResourceRequest(name=found.name, force=True)
        try:
            self._call(self._client.delete_queued_resource, request=request)
        except ANSWERS:
            return  # it is gone, or between two states: it is asked again

    def _resource(self, found: _Handle, **options: Any) -> tpu_v2.QueuedResource | None:
        try:
            return self._call(self._client.get_queued_resource, name=found.name, **options)
        except exceptions.NotFound:
            return None

    def _node_is_gone(self, found: _Handle, **options: Any) -> bool:
        name = found.name.replace("/queuedResources/", "/nodes/")
        try:
            node = self._call(self._client.get_node, name=name, **options)
        except exceptions.NotFound:
            return True
        return node.state in GONE_NODES

    def _check_own(self, full: str, wanted: tpu_v2.QueuedResource) -> None:
        found = self._call(self._client.get_queued_resource, name=full)
        if found.state.state == State.DELETING:
            raise StageError("error", f"{full} of an earlier submission is being deleted")
        labels = [one.tpu.node_spec[0].node.labels.get(DIGEST) for one in (found, wanted)]
        if labels[0] != labels[1]:
            raise StageError("error", f"{full} exists and is another's; rename the job")

    def _call(self, method: Callable[..., Any], *, patient: bool = True, **options: Any) -> Any:
        """What the API answers; raises ANSWERS, StageError, and _Away where nobody is patient."""
        retry = Retry(
            if_transient_error,
            initial=STEP_SECONDS,
            maximum=LONGEST_WAIT_SECONDS,
            timeout=self._settings.patience_seconds,
        )
        try:
            return method(retry=retry if patient else None, timeout=CALL_SECONDS, **options)
        except ANSWERS:
            raise
        except (exceptions.GoogleAPIError, GoogleAuthError, OSError) as error:
            if not patient and if_transient_error(error):
                raise _Away(str(error)) from error
            words = f"Cloud TPU refuses, or does not answer: {error}"
            raise StageError("error", words) from error

    @property
    def _client(self) -> tpu_v2.TpuClient:
        if self._opened is None:
            endpoint = self._settings.endpoint
            if endpoint is None:
                self._opened = tpu_v2.TpuClient(transport="rest")
            else:
                scheme = endpoint.partition("://")[0]
                plain = AnonymousCredentials() if scheme == "http" else None
                transport = TpuRestTransport(host=endpoint, credentials=plain, url_scheme=scheme)
                self._opened = tpu_v2.TpuClient(transport=transport)
        return self._opened


def _exit(storage: Storage, process: int) -> dict[str, Any]:
    text = storage.read(f"exit.{process}")
    assert text is not None
    return {"process": process, **json.loads(text)}


def _failed(ended: dict[str, Any], evidence: dict[str, Any]) -> JobState:
    """The process that failed first is why; others fail because of it."""
    reason, found = judge_status(ended["status"])
    place = {key: ended[key] for key in ("process", "node", "words") if ended[key] != ""}
    return JobState(done=True, reason=reason, evidence={**evidence, **found, **place})


def _wait(what: Callable[[], bool], seconds: float) -> None:
    """Until it is so, or the time is over."""
    deadline = time.monotonic() + seconds
    while not what() and time.monotonic() < deadline:
        time.sleep(STEP_SECONDS)
