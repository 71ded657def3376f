"""Where training curves are mirrored."""

import dagster as dg

from marin_dagster.environment import read_environment


class TrackerResource(dg.ConfigurableResource):
    """Weights & Biases: offline unless `WANDB_API_KEY` or `WANDB_MODE` says otherwise."""

    wandb_mode: str | None = None

    def mode(self) -> str:
        return self.wandb_mode or read_environment().placement.wandb_mode
