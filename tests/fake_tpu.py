"""Cloud TPU's REST API for queued resources, whose hosts are processes of this machine.

Each host has a metadata server, as on Google Cloud. Bodies are checked by the client's own message
types. The order of states, the answers and the notice before a preemption were written after the
client and the documentation, not observed.
"""

import contextlib
import json
import re
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from google.cloud import tpu_v2
from google.protobuf.json_format import ParseError

from tests.containers import Container
from tests.servers import free_port, serve_http

ZONE = "projects/lab/locations/us-central1-a"
HOSTS = {"v5litepod-8": ("2x4", 2), "v5litepod-4": ("2x2", 1)}  # topology and hosts of a type
RUNTIME = "v2-alpha-tpuv5-lite"
ABSENT = "NOT_FOUND"
WAIT_SECONDS = 60.0


class FakeTpu:
    """A zone; `url` is where its API is.

    What a test sets: `room`, whether resources become active; `failure`, words with which they
    fail instead; `rule`, as that of `servers.proxy`.
    """

    def __init__(self, folder: Path, bucket_url: str):
        self.folder = folder
        self.changed = threading.Condition(threading.RLock())
        self.resources: dict[str, dict[str, Any]] = {}
        self.hosts: dict[str, list[Host]] = {}
        self.room = True
        self.failure: str | None = None
        self.rule: Callable[[str, str], int | str | None] = lambda method, path: None
        self.bucket_url = bucket_url
        self.port = free_port()
        self.made = 0  # resources, ever
        self._stop: Callable[[], None] = lambda: None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        self._stop = serve_http(Api, self.port, zone=self)

    def stop(self) -> None:
        """The API goes away; hosts go on."""
        self._stop()

    def left(self) -> list[str]:
        """The resources that there are, and the processes of hosts that live."""
        with self.changed:
            running = [f"host {host.number}" for hosts in self.hosts.values() for host in hosts]
            return [*self.resources, *running]

    def preempt(self, grace: float = 10.0) -> None:
        """The cloud takes all hosts back: it says so, waits, and ends them."""
        with self.changed:
            ((name, resource),) = self.resources.items()
            resource["state"] = {"state": "SUSPENDING", "stateInitiator": "SERVICE"}
            for host in self.hosts[name]:
                host.preempted = True
                host.container.stop(grace)
            self.changed.notify_all()

    def kill_hosts(self) -> None:
        """Hosts are gone without a word, and of that only their node knows yet."""
        with self.changed:
            for host in [host for hosts in self.hosts.values() for host in hosts]:
                host.container.kill()
            for resource in self.resources.values():
                resource["node"] = "PREEMPTED"

    def create(self, name: str, body: bytes) -> dict[str, Any]:
        try:
            tpu_v2.QueuedResource.from_json(body, ignore_unknown_fields=False)
        except ParseError as error:
            raise Refusal(400, "INVALID_ARGUMENT", str(error)) from error
        with self.changed:
            if name in self.resources:
                raise Refusal(409, "ALREADY_EXISTS", name)
            found = {**json.loads(body), "name": name, "node": "READY"}
            self.resources[name] = found
            self.made += 1
            self._advance(found)
        return found

    def _advance(self, resource: dict[str, Any]) -> None:
        """To the state that it can get to now."""
        resource["state"] = {"state": "WAITING_FOR_RESOURCES"}
        if self.failure is not None:
            error = {"code": 8, "message": self.failure}
            resource["state"] = {"state": "FAILED", "failedData": {"error": error}}
        elif self.room:
            resource["state"] = {"state": "ACTIVE"}
            (spec,) = resource["tpu"]["nodeSpec"]
            _, count = HOSTS[spec["node"]["acceleratorType"]]
            script = spec["node"]["metadata"]["startup-script"]
            self.hosts[resource["name"]] = [Host(self, script, n, count) for n in range(count)]
            for host in list(self.hosts[resource["name"]]):
                host.container.watch(lambda code, host=host: self._ended(resource, host))

    def _ended(self, resource: dict[str, Any], host: "Host") -> None:
        with self.changed:
            left = self.hosts[resource["name"]]
            left.remove(host)
            host.close()
            if not left and resource["state"]["state"] == "SUSPENDING":
                resource["state"] = {"state": "SUSPENDED", "stateInitiator": "SERVICE"}
            if not left and resource["state"]["state"] == "DELETING":
                self.resources.pop(resource["name"], None)
            self.changed.notify_all()

    def delete(self, name: str, force: bool) -> None:
        with self.changed:
            found = self.resources.get(name)
            if found is None:
                raise Refusal(404, ABSENT, name)
            if found["state"]["state"] == "DELETING":
                raise Refusal(400, "FAILED_PRECONDITION", "it is being deleted")
            if found["state"]["state"] == "ACTIVE" and not force:
                raise Refusal(400, "FAILED_PRECONDITION", "its nodes exist; use force")
            found["state"] = {"state": "DELETING"}
            for host in list(self.hosts.get(name, ())):
                host.container.kill()
            if not self.hosts.get(name):
                del self.resources[name]

    def close(self) -> None:
        self._stop()
        with self.changed:
            hosts = [host for hosts in self.hosts.values() for host in hosts]
            for host in hosts:
                host.container.kill()
            assert self.changed.wait_for(lambda: not any(self.hosts.values()), WAIT_SECONDS)


class Host:
    """A host with its metadata server and its start-up script."""

    def __init__(self, zone: FakeTpu, script: str, number: int, count: int):
        self.number = number
        self.preempted = False
        self.addresses = ",".join(["unknown:unknown:127.0.0.1"] * count)
        port = free_port()
        self.close = serve_http(MetadataApi, port, host=self)
        variables = {
            "GCE_METADATA_HOST": f"127.0.0.1:{port}",
            "STORAGE_EMULATOR_HOST": zone.bucket_url,
        }
        log = zone.folder / f"host-{number}.log"
        self.container = Container(["bash", "-c", script], variables, log)


class Refusal(Exception):
    """What the API answers instead."""

    def __init__(self, status: int, code: str, message: str):
        super().__init__(message)
        self.status = status
        self.body = {"error": {"code": status, "status": code, "message": message}}


class Handler(BaseHTTPRequestHandler):
    def answer(self, status: int, content: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format, *args) -> None:
        pass


class Api(Handler):
    zone: FakeTpu

    def handle_one(self) -> None:
        url = urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        verdict = self.zone.rule(self.command, self.path)
        if isinstance(verdict, int):
            refusal = Refusal(verdict, "UNAVAILABLE", "busy")
            return self.answer(verdict, json.dumps(refusal.body).encode())
        try:
            found = self.do(url.path.removeprefix("/v2/"), parse_qs(url.query), body)
            status = 200
        except Refusal as refusal:
            status, found = refusal.status, refusal.body
        if verdict == "lose":
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return None
        return self.answer(status, json.dumps(found).encode())

    do_GET = do_POST = do_DELETE = handle_one

    def do(self, path: str, query: dict[str, list[str]], body: bytes) -> dict[str, Any]:
        zone = self.zone
        if self.command == "POST" and path == f"{ZONE}/queuedResources":
            zone.create(f"{path}/{query['queuedResourceId'][0]}", body)
            return {"name": f"{ZONE}/operations/1", "done": False}
        if self.command == "DELETE":
            zone.delete(path, query.get("force", [""])[0].lower() == "true")
            return {"name": f"{ZONE}/operations/2", "done": False}
        found = re.fullmatch(rf"{ZONE}/(?P<kind>[A-Za-z]+)/(?P<name>[^/]+)", path)
        if path == ZONE:
            return {"name": ZONE, "locationId": "us-central1-a"}
        if found is None:
            raise Refusal(404, ABSENT, path)
        with zone.changed:
            return self.read(found["kind"], found["name"], path)

    def read(self, kind: str, name: str, path: str) -> dict[str, Any]:
        resource = self.zone.resources.get(f"{ZONE}/queuedResources/{name}")
        if kind == "queuedResources" and resource is not None:
            return {key: value for key, value in resource.items() if key != "node"}
        if kind == "nodes" and resource is not None:
            return {"name": path, "state": resource["node"]}
        if kind == "runtimeVersions" and name == RUNTIME:
            return {"name": path, "version": name}
        if kind == "acceleratorTypes" and name in HOSTS:
            configs = [{"version": "V5LITE_POD", "topology": HOSTS[name][0]}]
            return {"name": path, "type": name, "acceleratorConfigs": configs}
        raise Refusal(404, ABSENT, f"{path} was not found")


class MetadataApi(Handler):
    host: Host

    def do_GET(self) -> None:
        assert self.headers["Metadata-Flavor"] == "Google"
        host = self.host
        found = {
            "attributes/agent-worker-number": str(host.number),
            "attributes/worker-network-endpoints": host.addresses,
            "preempted": str(host.preempted).upper(),
            "service-accounts/default/token": '{"access_token": "fake"}',
        }
        self.answer(200, found[self.path.removeprefix("/computeMetadata/v1/instance/")].encode())


@contextlib.contextmanager
def tpu_zone(folder: Path, bucket_url: str) -> Iterator[FakeTpu]:
    """A zone beside a bucket; at its end all its processes are killed."""
    folder.mkdir()
    zone = FakeTpu(folder, bucket_url)
    zone.start()
    try:
        yield zone
    finally:
        zone.close()
