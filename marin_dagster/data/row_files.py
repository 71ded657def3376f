"""Turns what was decided about rows of a shard into a file for the worker that writes it."""

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from marin_dagster.data.pipeline import shard_file, write_json


def save_rows(folder: str, shard: int, rows: Mapping[int, Any]) -> None:
    """Writes a value for some rows of a shard."""
    write_json(shard_file(folder, "", shard, ".json"), rows)


@lru_cache(maxsize=1)
def load_rows(folder: str, shard: int) -> dict[int, Any]:
    """The values of a shard by row; once per shard and process."""
    with open(shard_file(folder, "", shard, ".json"), encoding="utf-8") as file:
        return {int(row): value for row, value in json.load(file).items()}
