"""Turns a prefix into the backend that keeps its bytes: a disk, memory, Google Cloud Storage, S3."""

from marin_dagster.backends.base import Backend, Content, Entry, Upload, opener
from marin_dagster.backends.retry import StorageError

__all__ = ["Backend", "Content", "Entry", "StorageError", "Upload", "opener"]
