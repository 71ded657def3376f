"""Keeps bytes in S3. Atomic: every write, with `If-None-Match` to create and `If-Match` to swap.

It goes through boto3, which is synchronous, so a store has no event loop that a forked process
could inherit.
"""

from collections.abc import Iterator
from typing import Any

from boto3.exceptions import S3UploadFailedError
from boto3.session import Session
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError

from marin_dagster.backends.base import Content, Entry, Upload, bucket_of

TRY_AGAIN = (408, 409, 429, 500, 502, 503, 504)  # 409: two conditional writes met; nobody won
SLOW = ("SlowDown", "Throttling", "RequestTimeout", "RequestLimitExceeded", "InternalError")


class S3Backend:
    """Objects below a prefix of a bucket; a version is the ETag of an object."""

    local = False
    errors: tuple[type[Exception], ...] = (ClientError, BotoCoreError, S3UploadFailedError)

    def __init__(self, prefix: str):
        self._bucket, self.root = bucket_of(prefix)
        settings = Config(
            connect_timeout=10,
            read_timeout=30,
            retries={"mode": "standard", "total_max_attempts": 3},
        )
        self._client: Any = Session().client("s3", config=settings)

    def transient(self, error: Exception) -> bool:
        if isinstance(error, ClientError):
            return _status(error) in TRY_AGAIN or _code(error) in SLOW
        return isinstance(error, HTTPClientError)

    def read(self, path: str) -> Content | None:
        try:
            found = self._client.get_object(Bucket=self._bucket, Key=self._key(path))
        except ClientError as error:
            if _code(error) in ("NoSuchKey", "404"):
                return None
            raise
        with found["Body"] as body:
            return Content(body.read(), found["ETag"])

    def write(self, path: str, data: bytes) -> None:
        self._client.put_object(Bucket=self._bucket, Key=self._key(path), Body=data)

    def create(self, path: str, data: bytes) -> str | None:
        return self._conditional(path, data, IfNoneMatch="*")

    def replace(self, path: str, data: bytes, version: str) -> str | None:
        return self._conditional(path, data, IfMatch=version)

    def size(self, path: str) -> int | None:
        try:
            found = self._client.head_object(Bucket=self._bucket, Key=self._key(path))
        except ClientError as error:
            if _status(error) == 404:
                return None
            raise
        return found["ContentLength"]

    def names(self, path: str) -> list[str]:
        base = self._base(path)
        pages = self._pages("list_objects_v2", Prefix=base, Delimiter="/")
        names = []
        for page in pages:
            names += [item["Key"][len(base) :] for item in page.get("Contents", ())]
            names += [item["Prefix"][len(base) : -1] for item in page.get("CommonPrefixes", ())]
        return [name for name in names if name]

    def walk(self, path: str) -> Iterator[Entry]:
        base = self._base(path)
        for page in self._pages("list_objects_v2", Prefix=base):
            for item in page.get("Contents", ()):
                when = item["LastModified"].timestamp()
                yield Entry(item["Key"][len(base) :], item["Size"], when)

    def remove(self, path: str) -> None:
        self._client.delete_object(Bucket=self._bucket, Key=self._key(path))
        for page in self._pages("list_objects_v2", Prefix=self._base(path)):
            keys = [{"Key": item["Key"]} for item in page.get("Contents", ())]
            if keys:
                answer = self._client.delete_objects(Bucket=self._bucket, Delete={"Objects": keys})
                for failed in answer.get("Errors", ()):
                    raise ClientError({"Error": failed}, "DeleteObjects")

    def upload(self, path: str, source: str) -> None:
        try:
            self._client.upload_file(source, self._bucket, self._key(path))
        except S3UploadFailedError as error:
            raise error.__context__ or error from error  # what S3 said, which may be "slow down"

    def download(self, path: str, target: str) -> None:
        with open(target, "wb") as file:
            try:
                self._client.download_fileobj(self._bucket, self._key(path), file)
            except ClientError as error:
                if _status(error) == 404:
                    raise FileNotFoundError(self._key(path)) from error
                raise

    def unfinished(self, path: str) -> list[Upload]:
        base = self._base(path)
        found = []
        for page in self._pages("list_multipart_uploads", Prefix=base):
            for item in page.get("Uploads", ()):
                parts = self._pages("list_parts", Key=item["Key"], UploadId=item["UploadId"])
                size = sum(part["Size"] for page in parts for part in page.get("Parts", ()))
                when = item["Initiated"].timestamp()
                found.append(Upload(item["Key"][len(base) :], item["UploadId"], size, when))
        return [Upload(f"{path}/{item.path}", item.id, item.bytes, item.started) for item in found]

    def abort(self, upload: Upload) -> None:
        self._client.abort_multipart_upload(
            Bucket=self._bucket, Key=self._key(upload.path), UploadId=upload.id
        )

    def regions(self) -> tuple[str, ...]:
        found = self._client.get_bucket_location(Bucket=self._bucket)["LocationConstraint"]
        return ("us-east-1" if found is None else "eu-west-1" if found == "EU" else found,)

    def _conditional(self, path: str, data: bytes, **condition: str) -> str | None:
        try:
            done = self._client.put_object(
                Bucket=self._bucket, Key=self._key(path), Body=data, **condition
            )
        except ClientError as error:
            if _code(error) in ("PreconditionFailed", "NoSuchKey"):
                return None
            raise
        return done["ETag"]

    def _pages(self, operation: str, **words: Any) -> Iterator[dict[str, Any]]:
        return iter(self._client.get_paginator(operation).paginate(Bucket=self._bucket, **words))

    def _key(self, path: str) -> str:
        return f"{self.root}/{path}".strip("/")

    def _base(self, path: str) -> str:
        key = self._key(path)
        return f"{key}/" if key else ""


def _status(error: ClientError) -> int:
    return error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)


def _code(error: ClientError) -> str:
    return error.response.get("Error", {}).get("Code", "")
