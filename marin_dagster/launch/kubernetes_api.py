"""Turns what the launcher wants to know and do into calls of a Kubernetes API server."""

import json
import random
import time
from collections.abc import Callable
from functools import cached_property
from typing import Any

import kubernetes
import urllib3
from kubernetes.client import ApiException
from kubernetes.stream import stream

from marin_dagster.launch.manifests import CONTAINER, NAME_LABEL, KubernetesSettings
from marin_dagster.launch.pods import Object, process_of
from marin_dagster.recipe import StageError

CALL_SECONDS = 20.0
TRY_AGAIN = (408, 429, 500, 502, 503, 504)
FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 0.2, 5.0
JOBSETS = {"group": "jobset.x-k8s.io", "version": "v1alpha2", "plural": "jobsets"}


class Away(Exception):
    """The API server did not answer in time, or was too busy."""


class Exists(Exception):
    """Something of that name is there already."""


class KubernetesApi:
    """One namespace of a cluster. A call is repeated for `patience_seconds`, then it is Away.

    What is not found is None; any other refusal is a StageError in the server's words.
    """

    def __init__(self, settings: KubernetesSettings, *, patience_seconds: float):
        self._settings = settings
        self._namespace = settings.namespace
        self._patience_seconds = patience_seconds

    def create_job(self, manifest: Object) -> Object:
        """Creates a Job or JobSet; raises Exists."""
        if manifest["kind"] == "Job":
            return self._made(self._batch.create_namespaced_job, self._namespace, manifest)
        create = self._custom.create_namespaced_custom_object
        return self._made(create, namespace=self._namespace, body=manifest, **JOBSETS)

    def create_service(self, manifest: Object) -> Object:
        """Creates a Service; raises Exists."""
        return self._made(self._core.create_namespaced_service, self._namespace, manifest)

    def job(self, name: str, kind: str) -> Object | None:
        if kind == "Job":
            return self._found(self._batch.read_namespaced_job, name, self._namespace)
        read = self._custom.get_namespaced_custom_object
        return self._found(read, name=name, namespace=self._namespace, **JOBSETS)

    def pods(self, name: str) -> list[Object]:
        """The pods of a job, by process."""
        read = self._core.list_namespaced_pod
        found = self._found(read, self._namespace, label_selector=f"{NAME_LABEL}={name}")
        return sorted((found or {"items": ()})["items"], key=process_of)

    def service(self, name: str) -> Object | None:
        return self._found(self._core.read_namespaced_service, name, self._namespace)

    def warning(self, names: list[str]) -> str | None:
        """The last warning about one of these objects, in the words of who gave it."""
        read = self._core.list_namespaced_event
        found = self._found(read, self._namespace, field_selector="type=Warning")
        events = [
            one
            for one in (found or {"items": ()})["items"]
            if one["involvedObject"]["name"] in names
        ]
        last = max(events, key=lambda one: one.get("lastTimestamp") or "", default=None)
        return f"{last.get('reason')}: {last.get('message')}" if last else None

    def log(self, pod: Object, lines: int | None = None) -> bytes | None:
        """What a pod printed, or the end of it; None when it has not begun, or is gone."""
        options: dict[str, Any] = {"container": CONTAINER}
        if lines is not None:
            options["tail_lines"] = lines
        name, read = pod["metadata"]["name"], self._core.read_namespaced_pod_log
        try:
            return self._answer(read, name, self._namespace, **options)
        except ApiException as error:
            if error.status in (400, 404):
                return None
            raise _refusal(error) from error

    def execute(self, pod: Object, command: list[str]) -> None:
        """Runs a command in a pod; nothing happens where there is no container or node any more."""
        core: Any = kubernetes.client.CoreV1Api(self._new_client())  # `stream` changes its client
        try:
            stream(
                core.connect_get_namespaced_pod_exec,
                pod["metadata"]["name"],
                self._namespace,
                container=CONTAINER,
                command=command,
                stdout=True,
                stderr=True,
                _request_timeout=CALL_SECONDS,
            )
        except ApiException as error:
            if error.status in (401, 403):
                raise _refusal(error) from error

    def delete(self, name: str, kind: str, grace: int) -> None:
        """Deletes a job with all that belongs to it, and gives its pods `grace` seconds."""
        options: Object = {"propagationPolicy": "Foreground"}
        if kind == "Job":
            self._found(self._batch.delete_namespaced_job, name, self._namespace, body=options)
        else:
            delete = self._custom.delete_namespaced_custom_object
            self._found(delete, name=name, namespace=self._namespace, body=options, **JOBSETS)
        options, delete = {"gracePeriodSeconds": grace}, self._core.delete_namespaced_pod
        for pod in self.pods(name):
            self._found(delete, pod["metadata"]["name"], self._namespace, body=options)

    @cached_property
    def client(self) -> Any:
        return self._new_client()

    def _new_client(self) -> Any:
        settings = self._settings
        found: Any = kubernetes.client.Configuration()
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
        return kubernetes.client.CoreV1Api(self.client)

    @cached_property
    def _batch(self) -> Any:
        return kubernetes.client.BatchV1Api(self.client)

    @cached_property
    def _custom(self) -> Any:
        return kubernetes.client.CustomObjectsApi(self.client)

    def _made(self, method: Callable[..., Any], *args: Any, **options: Any) -> Object:
        try:
            return json.loads(self._answer(method, *args, **options))
        except ApiException as error:
            if error.status == 409:
                raise Exists from error
            raise _refusal(error) from error

    def _found(self, method: Callable[..., Any], *args: Any, **options: Any) -> Object | None:
        try:
            return json.loads(self._answer(method, *args, **options))
        except ApiException as error:
            if error.status == 404:
                return None
            raise _refusal(error) from error

    def _answer(self, method: Callable[..., Any], *args: Any, **options: Any) -> bytes:
        """What the server answers; raises Away, and ApiException for what it refuses."""
        options |= {"_preload_content": False, "_request_timeout": CALL_SECONDS}
        deadline, longest = time.monotonic() + self._patience_seconds, FIRST_WAIT_SECONDS
        while True:
            try:
                return method(*args, **options).data
            except ApiException as error:
                if error.status not in TRY_AGAIN:
                    raise
                away = Away(f"the API server is busy: {_words(error)}")
            except (urllib3.exceptions.HTTPError, OSError) as error:
                away = Away(f"the API server does not answer: {error}")
            wait = random.uniform(longest / 2, longest)
            if time.monotonic() + wait > deadline:
                raise away
            time.sleep(wait)
            longest = min(longest * 2, LONGEST_WAIT_SECONDS)


def _refusal(error: ApiException) -> StageError:
    return StageError("error", f"the cluster refuses: {_words(error)}")


def _words(error: ApiException) -> str:
    """What the API server said, which it says in JSON."""
    try:
        return json.loads(error.body or "")["message"]
    except (ValueError, KeyError, TypeError):
        return f"{error.status} {error.reason}"
