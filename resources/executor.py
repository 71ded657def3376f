"""How data stages use this machine."""

import dagster as dg

from marin_dagster.environment import read_environment


class ExecutorResource(dg.ConfigurableResource):
    """Worker processes of data stages: `MARIN_WORKERS`, by default one per core."""

    workers: int | None = None

    def processes(self) -> int:
        return self.workers or read_environment().placement.workers
