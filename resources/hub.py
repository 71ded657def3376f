"""How the Hugging Face hub is reached."""

import dagster as dg

from marin_dagster.environment import read_environment


class HubResource(dg.ConfigurableResource):
    """The hub token comes from `HF_TOKEN` and is stored nowhere."""

    def token(self) -> str | None:
        return read_environment().placement.hub_token
