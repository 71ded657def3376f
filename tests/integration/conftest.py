"""What several tests need: the four places that a store may lie in, and clusters of the tests."""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.fake_kubernetes import kubernetes_server
from tests.fake_tpu import tpu_zone
from tests.servers import (
    BUCKET,
    amazon_environment,
    amazon_server,
    google_environment,
    google_server,
)


@dataclass(frozen=True, kw_only=True)
class Place:
    """A fresh prefix, the server behind it, and what a client's environment must hold."""

    kind: str
    prefix: str
    server: str = ""

    def environment(self, url: str | None = None) -> dict[str, str]:
        """For clients of the server, or of a proxy in front of it."""
        if self.kind == "gs":
            return google_environment(url or self.server)
        return amazon_environment(url or self.server) if self.kind == "s3" else {}


@pytest.fixture(scope="session")
def google() -> Iterator[str]:
    with google_server() as url:
        yield url


@pytest.fixture(scope="session")
def amazon() -> Iterator[str]:
    with amazon_server() as url:
        yield url


@pytest.fixture(params=["file", "memory", "gs", "s3"])
def place(request, tmp_path, monkeypatch) -> Place:
    """Each of the four backends."""
    return open_place(request, request.param, tmp_path, monkeypatch)


@pytest.fixture(params=["file", "gs", "s3"])
def shared_place(request, tmp_path, monkeypatch) -> Place:
    """The backends that processes can share."""
    return open_place(request, request.param, tmp_path, monkeypatch)


@pytest.fixture(params=["gs", "s3"])
def bucket(request, tmp_path, monkeypatch) -> Place:
    """The backends behind a server."""
    return open_place(request, request.param, tmp_path, monkeypatch)


def open_place(request, kind: str, tmp_path, monkeypatch) -> Place:
    server = ""
    if kind == "file":
        prefix = str(tmp_path / "store")
    elif kind == "memory":
        prefix = f"memory://{tmp_path.name}"
    else:
        server = request.getfixturevalue("google" if kind == "gs" else "amazon")
        prefix = f"{kind}://{BUCKET}/{tmp_path.parent.name}/{tmp_path.name}"
    found = Place(kind=kind, prefix=prefix, server=server)
    for name, value in found.environment().items():
        monkeypatch.setenv(name, value)
    return found


@pytest.fixture
def cluster(tmp_path):
    with kubernetes_server(tmp_path / "cluster") as fake:
        yield fake


@pytest.fixture
def zone(google, tmp_path, monkeypatch):
    for name, value in google_environment(google).items():
        monkeypatch.setenv(name, value)
    with tpu_zone(tmp_path / "zone", google) as found:
        yield found
