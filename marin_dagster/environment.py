"""Turns environment variables into settings: the one place of the engine that reads them."""

import math
import os
from dataclasses import dataclass
from pathlib import Path

from marin_dagster.recipe import Devices, Placement
from marin_dagster.store import Store

DEFAULT_WEBSERVER = "http://127.0.0.1:3000"


@dataclass(frozen=True, kw_only=True)
class Environment:
    """What this machine provides. None of it is part of an artifact's identity."""

    prefix: str  # MARIN_PREFIX: folder or bucket of all artifacts
    drift: str  # MARIN_DRIFT: warn | error
    repository_url: str | None  # MARIN_REPOSITORY_URL: where this code can be read
    steps: int  # MARIN_STEPS: steps of one build that run side by side
    region: str | None  # MARIN_REGION: where this machine computes
    cross_region: bool  # MARIN_CROSS_REGION: allow
    container_image: str | None  # MARIN_CONTAINER_IMAGE
    # MARIN_WORKERS, HF_TOKEN, WANDB_MODE, MARIN_CHECKPOINT_ROOTS, and those of its devices
    placement: Placement
    webserver: str  # MARIN_DAGSTER_URL: where `dagster dev` is reached
    timeout_seconds: float | None  # MARIN_TIMEOUT_SECONDS: wall time of a worker
    hang_seconds: float | None  # MARIN_HANG_SECONDS: longest silence of a worker

    def store(self, *, prefix: str | None = None, drift: str | None = None) -> Store:
        """The store of this environment; what is given wins over the environment."""
        return Store(
            prefix or self.prefix,
            drift=drift or self.drift,
            region=self.region,
            cross_region=self.cross_region,
            container_image=self.container_image,
        )


def read_environment() -> Environment:
    """Reads the settings; raises ValueError for a value that makes no sense."""
    return Environment(
        prefix=os.environ.get("MARIN_PREFIX") or default_prefix(),
        drift=os.environ.get("MARIN_DRIFT") or "warn",
        repository_url=os.environ.get("MARIN_REPOSITORY_URL") or None,
        steps=_positive("MARIN_STEPS", default=2),
        region=os.environ.get("MARIN_REGION") or None,
        cross_region=_cross_region(),
        container_image=os.environ.get("MARIN_CONTAINER_IMAGE") or None,
        placement=Placement(
            workers=_positive("MARIN_WORKERS", default=os.cpu_count() or 1),
            hub_token=os.environ.get("HF_TOKEN") or None,
            wandb_mode=_wandb_mode(),
            checkpoint_roots=_folders("MARIN_CHECKPOINT_ROOTS"),
            devices=_devices(),
        ),
        webserver=os.environ.get("MARIN_DAGSTER_URL") or DEFAULT_WEBSERVER,
        timeout_seconds=_seconds("MARIN_TIMEOUT_SECONDS"),
        hang_seconds=_seconds("MARIN_HANG_SECONDS"),
    )


def checkout() -> Path:
    """The folder with `dagster.yaml`: this checkout, or the current folder when installed."""
    root = Path(__file__).resolve().parent.parent
    return root if (root / "dagster.yaml").exists() else Path.cwd()


def default_prefix() -> str:
    return str(checkout() / "local_store")


def _cross_region() -> bool:
    text = os.environ.get("MARIN_CROSS_REGION") or "refuse"
    if text not in ("refuse", "allow"):
        raise ValueError(f"MARIN_CROSS_REGION={text!r} is neither 'refuse' nor 'allow'")
    return text == "allow"


def _devices() -> Devices:
    """MARIN_MESH, MARIN_EXCHANGE, MARIN_MICRO_BATCHES, MARIN_REMAT and MARIN_SCAN_LAYERS."""
    return Devices(
        mesh=os.environ.get("MARIN_MESH") or "",
        exchange=_one_of("MARIN_EXCHANGE", "all_to_all", "ring"),
        micro_batches=_positive("MARIN_MICRO_BATCHES", default=1),
        remat=_one_of("MARIN_REMAT", "none", "block"),
        scan_layers=_one_of("MARIN_SCAN_LAYERS", "no", "yes") == "yes",
    )


def _one_of(name: str, default: str, *others: str) -> str:
    value = os.environ.get(name) or default
    if value not in (default, *others):
        raise ValueError(f"{name}={value!r} is not one of {', '.join((default, *others))}")
    return value


def _wandb_mode() -> str:
    """Online only with a key and a wish: no account is needed, and none is used by accident."""
    mode = os.environ.get("WANDB_MODE") or ("online" if os.environ.get("WANDB_API_KEY") else "")
    mode = mode or "offline"
    if mode not in ("offline", "online", "disabled"):
        raise ValueError(f"WANDB_MODE={mode!r} is not one of offline, online, disabled")
    return mode


def _positive(name: str, default: int) -> int:
    text = os.environ.get(name)
    if not text:
        return default
    if not (text.isascii() and text.isdigit()) or int(text) < 1:
        raise ValueError(f"{name}={text!r} is not a positive whole number")
    return int(text)


def _folders(name: str) -> tuple[str, ...]:
    """Absolute folders, separated as in PATH."""
    folders = tuple(filter(None, (os.environ.get(name) or "").split(os.pathsep)))
    for folder in folders:
        if not os.path.isabs(folder):
            raise ValueError(
                f"{name} has {folder!r}, which is not an absolute path; name folders as in PATH, "
                f"separated by {os.pathsep!r}, and mount a bucket before"
            )
    return folders


def _seconds(name: str) -> float | None:
    text = os.environ.get(name)
    if not text:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not (math.isfinite(seconds) and seconds > 0):
        raise ValueError(f"{name}={text!r} is not a positive number of seconds; unset it for none")
    return seconds
