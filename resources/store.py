"""Where artifacts lie."""

import dagster as dg

from marin_dagster.environment import read_environment
from marin_dagster.store import Store


class StoreResource(dg.ConfigurableResource):
    """The artifacts under `MARIN_PREFIX` (by default a folder of the checkout)."""

    prefix: str | None = None
    drift: str | None = None

    def open(self) -> Store:
        return read_environment().store(prefix=self.prefix, drift=self.drift)
