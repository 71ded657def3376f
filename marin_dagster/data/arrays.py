"""Turns arrays of a shard into files that another process maps."""

import os
from functools import lru_cache

import numpy as np


def array_file(work: str, name: str, shard: int) -> str:
    """Where the array of a shard is kept."""
    return os.path.join(work, name, f"{shard:05d}.npy")


def save_array(path: str, array: np.ndarray) -> None:
    """Writes an array, and its folder if need be."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    np.save(path, array)


@lru_cache(maxsize=256)
def load_array(path: str) -> np.ndarray:
    """A mapped array: reading a part of it brings that part into memory."""
    return np.asarray(np.load(path, mmap_mode="r"))
