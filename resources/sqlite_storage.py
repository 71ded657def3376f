"""Turns a folder into Dagster's history, made by one process even when many come at once."""

import fcntl
import os

from dagster._core.storage.sqlite_storage import DagsterSqliteStorage, SqliteStorageConfig
from dagster._serdes import ConfigurableClassData


class SharedSqliteStorage(DagsterSqliteStorage):
    """Dagster's SQLite storage, opened under a file lock.

    Without it, two first commands create the same tables and one of them fails. `dagster.yaml`
    names this class.
    """

    def __init__(self, base_dir: str, inst_data: ConfigurableClassData | None = None):
        with open(os.path.join(base_dir, "open.lock"), "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            super().__init__(base_dir, inst_data)

    @classmethod
    def from_config_value(
        cls, inst_data: ConfigurableClassData, config_value: SqliteStorageConfig
    ) -> "SharedSqliteStorage":
        return cls.from_local(inst_data=inst_data, **config_value)
