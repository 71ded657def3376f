"""Keeps bytes in Google Cloud Storage. Atomic: every write, with a precondition on the generation.

It goes through google-cloud-storage, which is synchronous and checks CRC32C both ways, so a store
has no event loop that a forked process could inherit.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import requests
from google.api_core.exceptions import GoogleAPICallError, NotFound, PreconditionFailed
from google.auth.exceptions import GoogleAuthError, TransportError
from google.cloud import storage
from google.cloud.storage.exceptions import DataCorruption, InvalidResponse

from marin_dagster.backends.base import Content, Entry, Upload, bucket_of

TRY_AGAIN = (408, 429, 500, 502, 503, 504)
SMALL: dict[str, Any] = {"retry": None, "timeout": 30.0}  # seconds; `Storage` tries again itself


class GoogleBackend:
    """Objects below a prefix of a bucket; a version is the generation of an object."""

    local = False
    errors: tuple[type[Exception], ...] = (
        GoogleAPICallError,
        GoogleAuthError,
        requests.exceptions.RequestException,
        DataCorruption,
        InvalidResponse,
    )

    def __init__(self, prefix: str):
        bucket, self.root = bucket_of(prefix)
        self._client: Any = storage.Client(project=None)
        self._bucket: Any = self._client.bucket(bucket)

    def transient(self, error: Exception) -> bool:
        if isinstance(error, GoogleAPICallError):
            return error.code in TRY_AGAIN
        return isinstance(
            error, (TransportError, DataCorruption, requests.ConnectionError, requests.Timeout)
        )

    def read(self, path: str) -> Content | None:
        blob = self._blob(path)
        try:
            data = blob.download_as_bytes(**SMALL)
        except NotFound:
            return None
        return Content(data, str(blob.generation))

    def write(self, path: str, data: bytes) -> None:
        self._blob(path).upload_from_string(data, **SMALL)

    def create(self, path: str, data: bytes) -> str | None:
        return self._conditional(path, data, 0)

    def replace(self, path: str, data: bytes, version: str) -> str | None:
        return self._conditional(path, data, int(version))

    def size(self, path: str) -> int | None:
        blob = self._blob(path)
        try:
            blob.reload(**SMALL)
        except NotFound:
            return None
        return blob.size

    def names(self, path: str) -> list[str]:
        base = self._base(path)
        found = self._client.list_blobs(self._bucket, prefix=base, delimiter="/", **SMALL)
        files = [blob.name[len(base) :] for blob in found]
        return [name for name in files if name] + [
            folder[len(base) : -1] for folder in found.prefixes
        ]

    def walk(self, path: str) -> Iterator[Entry]:
        base = self._base(path)
        for blob in self._client.list_blobs(self._bucket, prefix=base, **SMALL):
            yield Entry(blob.name[len(base) :], blob.size, blob.updated.timestamp())

    def remove(self, path: str) -> None:
        for blob in [self._blob(path), *self._below(path)]:
            with contextlib.suppress(NotFound):
                blob.delete(**SMALL)

    def upload(self, path: str, source: str) -> None:
        self._blob(path).upload_from_filename(source)

    def download(self, path: str, target: str) -> None:
        with open(target, "wb") as file:
            try:
                self._blob(path).download_to_file(file)
            except NotFound as error:
                raise FileNotFoundError(self._key(path)) from error

    def unfinished(self, path: str) -> list[Upload]:
        return []  # large files go up in resumable sessions, which Google neither lists nor bills

    def abort(self, upload: Upload) -> None:
        raise AssertionError("resumable sessions are not listed")

    def regions(self) -> tuple[str, ...]:
        self._bucket.reload(**SMALL)
        return tuple(self._bucket.data_locations or [self._bucket.location])

    def _conditional(self, path: str, data: bytes, generation: int) -> str | None:
        blob = self._blob(path)
        try:
            blob.upload_from_string(data, if_generation_match=generation, **SMALL)
        except PreconditionFailed:
            return None
        return str(blob.generation)

    def _below(self, path: str) -> list[Any]:
        return [*self._client.list_blobs(self._bucket, prefix=self._base(path), **SMALL)]

    def _blob(self, path: str) -> Any:
        return self._bucket.blob(self._key(path))

    def _key(self, path: str) -> str:
        return f"{self.root}/{path}".strip("/")

    def _base(self, path: str) -> str:
        key = self._key(path)
        return f"{key}/" if key else ""
