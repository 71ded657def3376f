"""Turns a job into pods of a Kubernetes cluster, such as GKE. Needs the extra `kubernetes`.

Everything belongs to one Job or JobSet, and goes with it. Its name carries a digest of the job, so
a job that is submitted again, because the answer was lost or the submitter died, is found.
"""

import contextlib
import json
import time
from dataclasses import asdict, dataclass, replace

import urllib3
from kubernetes.config import ConfigException

from marin_dagster.launch.base import Job, JobState
from marin_dagster.launch.kubernetes_api import Away, Exists, KubernetesApi
from marin_dagster.launch.kubernetes_checks import missing
from marin_dagster.launch.manifests import (
    DIGEST,
    KubernetesSettings,
    job_manifest,
    name_of,
    service_manifest,
)
from marin_dagster.launch.pods import Object, fails, process_of, state_of
from marin_dagster.launch.polled import Polled
from marin_dagster.recipe import StageError
from marin_dagster.storage import Storage

FORCE_SECONDS = 3.0  # after the grace of a cancel: what is there still, nobody ends any more
GONE_SECONDS = 3.0  # for what was forced
STEP_SECONDS = 0.25  # of waiting for that


@dataclass(frozen=True, kw_only=True)
class _Handle:
    name: str
    kind: str  # Job or JobSet
    logs: str

    @classmethod
    def of(cls, handle: str) -> "_Handle":
        return cls(**json.loads(handle))


class KubernetesLauncher:
    """Submits jobs to one namespace of a cluster.

    The API server may be away for a while: a job that runs goes on, and `state` calls it not done.
    All else raises StageError when it does not answer for `patience_seconds`, and in the server's
    own words when it refuses.
    """

    def __init__(self, settings: KubernetesSettings):
        self._settings = settings
        self._patient = KubernetesApi(settings, patience_seconds=settings.patience_seconds)
        self._brief = KubernetesApi(settings, patience_seconds=0.0)
        self._polled = Polled(settings.poll_seconds)
        self._seen: dict[str, dict[str, Object]] = {}  # by job and pod: what is gone says why

    def preflight(self, job: Job) -> list[str]:
        """What is missing: the API server, rights, the namespace, queue, image and nodes."""
        try:
            job_manifest(job, self._settings)
            return missing(self._brief.client, job, self._settings)
        except ValueError as error:
            return [str(error)]
        except (ConfigException, OSError) as error:
            return [f"no cluster is configured: {error}; set a kubeconfig, or run in a cluster"]
        except urllib3.exceptions.HTTPError as error:
            where = self._brief.client.configuration.host
            return [f"the API server at {where} does not answer: {error}; see whether it runs"]

    def submit(self, job: Job) -> str:
        """Starts the job, or finds it if the same job was submitted before; returns its handle."""
        manifest = job_manifest(job, self._settings)
        name, kind = name_of(job, self._settings), manifest["kind"]
        try:
            made = self._submit(name, manifest)
            if kind == "Job":  # a JobSet makes its own
                service = service_manifest(name, made["metadata"])
                self._create_service(service)
        except Away as error:
            raise self._gave_up(name, error) from error
        return json.dumps(asdict(_Handle(name=name, kind=kind, logs=job.logs)))

    def state(self, handle: str) -> JobState:
        """Asks the API server, at most every `poll_seconds`."""
        return self._polled.state(handle, self._ask)

    def dump_stacks(self, handle: str) -> None:
        """Sends SIGUSR1 to the first process of every container that runs."""
        found = _Handle.of(handle)
        try:
            pods = [pod for pod in self._patient.pods(found.name) if _runs(pod)]
        except Away as error:
            raise self._gave_up(found.name, error) from error
        for pod in pods:
            self._patient.execute(pod, ["sh", "-c", "kill -USR1 1"])

    def cancel(self, handle: str) -> None:
        """Saves all logs, then deletes the job; returns when job, pods and service are gone.

        What has not ended after `cancel_grace_seconds` is deleted by force. Raises StageError when
        something is left even then.
        """
        found = _Handle.of(handle)
        try:
            try:
                self._save_logs(self._patient, found, self._patient.pods(found.name))
            finally:  # also when logs cannot be written
                self._delete(found)
        except Away as error:
            raise self._gave_up(found.name, error) from error

    def logs(self, handle: str, process: int = 0, lines: int = 50) -> list[str]:
        """The last lines of a process: of its pod, or of the log that was saved before it went."""
        found, text = _Handle.of(handle), None
        try:
            for pod in self._patient.pods(found.name):
                if process_of(pod) == process:
                    text = self._patient.log(pod, lines)
        except Away as error:
            raise self._gave_up(found.name, error) from error
        if text is None:
            text = Storage(found.logs).read(f"{process:04d}.log") or b""
        return text.decode(errors="replace").splitlines()[-lines:]

    def _submit(self, name: str, manifest: Object) -> Object:
        """Creates the job, or returns the one that is there already."""
        try:
            return self._patient.create_job(manifest)
        except Exists:
            made = self._patient.job(name, manifest["kind"])
        wanted = manifest["metadata"]["labels"][DIGEST]
        if made is None or "deletionTimestamp" in made["metadata"]:
            raise StageError("error", f"{name} of an earlier submission is being deleted")
        if made["metadata"].get("labels", {}).get(DIGEST) != wanted:
            raise StageError("error", f"{name} exists and is another's; rename the job")
        return made

    def _create_service(self, manifest: Object) -> None:
        try:
            self._patient.create_service(manifest)
        except Exists:
            return  # by an earlier submission of this job, whose owner it names

    def _ask(self, handle: str) -> JobState:
        try:
            return self._state(_Handle.of(handle))
        except Away as error:
            return JobState(done=False, waits=str(error))

    def _state(self, found: _Handle) -> JobState:
        api = self._brief
        job = api.job(found.name, found.kind)
        if job is None:
            return JobState(done=True, evidence={"kubernetes": f"there is no {found.name}"})
        pods = api.pods(found.name)
        seen = self._seen.setdefault(found.name, {})
        seen |= {pod["metadata"]["name"]: pod for pod in pods}
        if fails(job, pods):  # the pods of other processes will be deleted, and their logs too
            with contextlib.suppress(OSError):  # `cancel` tries again, and says so
                self._save_logs(api, found, pods)
        limit = self._settings.image_seconds
        state = state_of(job, [*seen.values()], image_seconds=limit, now=time.time())
        if state.waits is None:
            return state
        names = [found.name, *(pod["metadata"]["name"] for pod in pods if not _runs(pod))]
        warning = None if "Unschedulable" in state.waits else api.warning(names)
        return replace(state, waits=f"{state.waits}; {warning}") if warning else state

    def _delete(self, found: _Handle) -> None:
        api, grace = self._patient, self._settings.cancel_grace_seconds
        forced, started = False, time.monotonic()
        api.delete(found.name, found.kind, grace)
        while left := self._left(found):
            spent = time.monotonic() - started
            if spent > grace + FORCE_SECONDS and not forced:
                forced = True
                api.delete(found.name, found.kind, 0)
            if spent > grace + FORCE_SECONDS + GONE_SECONDS:
                raise StageError(
                    "error",
                    f"{', '.join(left)} of {found.name} are still there {spent:.0f} s after they "
                    "were deleted; see what `kubectl describe` says of them, and cancel again",
                    {"left": left},
                )
            time.sleep(STEP_SECONDS)

    def _left(self, found: _Handle) -> list[str]:
        """What there still is of a job that was deleted."""
        left = [f"pod {pod['metadata']['name']}" for pod in self._patient.pods(found.name)]
        if self._patient.job(found.name, found.kind) is not None:
            left.append(found.kind)
        if self._patient.service(found.name) is not None:
            left.append("Service")
        return left

    def _save_logs(self, api: KubernetesApi, found: _Handle, pods: list[Object]) -> None:
        storage = Storage(found.logs)
        for pod in pods:
            text, name = api.log(pod), f"{process_of(pod):04d}.log"
            if text is not None and len(text) >= (storage.size(name) or 0):
                storage.write(name, text)

    def _gave_up(self, name: str, error: Away) -> StageError:
        limit = self._settings.patience_seconds
        return StageError("error", f"{name}: {error}, for {limit:g} s; see whether it runs")


def _runs(pod: Object) -> bool:
    return pod["status"].get("phase") == "Running"
