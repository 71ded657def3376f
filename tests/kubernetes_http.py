"""The wire of `fake_kubernetes`: paths, selectors, lost answers, and exec over a web socket."""

import base64
import hashlib
import json
import re
import socket
import struct
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.servers import serve_http

PATH = re.compile(
    r"/(?:api/v1|apis/[^/]+/[^/]+)(?:/namespaces/[^/]+)?/"
    r"(?P<plural>[a-z]+)(?:/(?P<name>[^/]+))?(?:/(?P<part>log|exec))?"
)
SOCKET_ID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # RFC 6455, 1.3
VERSION = "major minor gitVersion gitCommit gitTreeState buildDate goVersion compiler platform"
ERROR_CHANNEL = 3  # of v4.channel.k8s.io


class Refusal(Exception):
    """What the server answers instead: a status and words."""

    def __init__(self, status: int, message: str):
        super().__init__(message)
        self.status = status
        self.message = message


def serve(cluster: Any, port: int) -> Callable[[], None]:
    """Serves a `FakeKubernetes`; returns what ends that, and every connection with it."""
    return serve_http(Handler, port, fake=cluster)


class Handler(BaseHTTPRequestHandler):
    fake: Any

    def handle_one(self) -> None:
        url = urlsplit(self.path)
        self.fake.requests.append(f"{self.command} {url.path}")
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        verdict = self.fake.rule(self.command, self.path)
        if isinstance(verdict, int):
            return self.answer(verdict, {"kind": "Status", "message": "busy"})
        try:
            status, found = self.do(url.path, parse_qs(url.query), body)
        except Refusal as refusal:
            words = {"kind": "Status", "message": refusal.message, "code": refusal.status}
            status, found = refusal.status, words
        if verdict == "lose":
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
        elif found is not None:
            self.answer(status, found)
        return None

    do_GET = do_POST = do_DELETE = handle_one

    def do(self, path: str, query: dict[str, list[str]], body: bytes) -> tuple[int, Any]:
        if path == "/version/":
            return 200, dict.fromkeys(VERSION.split(), "v1.34.0")
        found = PATH.fullmatch(path)
        if found is None:
            raise Refusal(404, f"no path {path}")
        plural, name, part = found["plural"], found["name"], found["part"]
        if self.command == "POST":
            return 201, self.fake.create(plural, json.loads(body))
        if self.command == "DELETE":
            return 200, self.fake.delete(plural, name, json.loads(body))
        if part == "log":
            return 200, _last_lines(self.fake.log(name), query)
        if part == "exec":
            self.execute(name, query["command"])
            return 101, None
        if name is None:
            return 200, {"kind": "List", "metadata": {}, "items": self.listed(plural, query)}
        with self.fake.lock:
            if (plural, name) not in self.fake.objects:
                raise Refusal(404, f'{plural} "{name}" not found')
            return 200, json.loads(json.dumps(self.fake.objects[plural, name]))

    def listed(self, plural: str, query: dict[str, list[str]]) -> list[Any]:
        wanted = dict(
            one.split("=") for text in query.get("labelSelector", []) for one in text.split(",")
        )
        with self.fake.lock:
            items = [one for (kind, _), one in self.fake.objects.items() if kind == plural]
            found = [
                one for one in items if wanted.items() <= one["metadata"].get("labels", {}).items()
            ]
            return json.loads(json.dumps(found))

    def execute(self, name: str, command: list[str]) -> None:
        """Speaks just enough of web sockets to run a command and say how it ended."""
        container = self.fake.containers.get(name)
        if container is None:
            raise Refusal(400, f"pod {name} is not running")
        key = self.headers["Sec-WebSocket-Key"] + SOCKET_ID
        self.send_response_only(101)
        self.send_header("Upgrade", "websocket")
        self.send_header("Connection", "Upgrade")
        self.send_header(
            "Sec-WebSocket-Accept", base64.b64encode(hashlib.sha1(key.encode()).digest()).decode()
        )
        self.send_header("Sec-WebSocket-Protocol", "v4.channel.k8s.io")
        self.end_headers()
        code = container.execute(command)
        status = {"kind": "Status", "status": "Success" if code == 0 else "Failure"}
        self.wfile.write(_frame(2, bytes([ERROR_CHANNEL]) + json.dumps(status).encode()))
        self.wfile.write(_frame(8, struct.pack("!H", 1000)))
        self.close_connection = True

    def answer(self, status: int, found: Any) -> None:
        content = found if isinstance(found, bytes) else json.dumps(found).encode()
        kind = "text/plain" if isinstance(found, bytes) else "application/json"
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format, *args) -> None:
        pass


def _last_lines(text: bytes, query: dict[str, list[str]]) -> bytes:
    if "tailLines" not in query:
        return text
    lines = text.splitlines(keepends=True)
    return b"".join(lines[-int(query["tailLines"][0]) :])


def _frame(opcode: int, payload: bytes) -> bytes:
    """One frame of a server, RFC 6455, 5.2; payloads here are short."""
    assert len(payload) < 126
    return bytes([0x80 | opcode, len(payload)]) + payload
