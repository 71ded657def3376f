"""Turns a prefix into the backend of its bytes: a disk, memory, Google's or Amazon's store."""

from marin_dagster.backends.base import Backend, Content, Entry, Upload, opener
from marin_dagster.backends.retry import StorageError

__all__ = ["Backend", "Content", "Entry", "StorageError", "Upload", "opener"]
