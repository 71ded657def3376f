"""What an environment provides to the assets. Names here are the keys that assets ask for."""

from resources.executor import ExecutorResource
from resources.hub import HubResource
from resources.launcher import LauncherResource
from resources.store import StoreResource
from resources.tracker import TrackerResource
from resources.webserver import WebserverResource

RESOURCES = {
    "store": StoreResource(),
    "launcher": LauncherResource(),
    "executor": ExecutorResource(),
    "tracker": TrackerResource(),
    "hub": HubResource(),
    "webserver": WebserverResource(),
}

__all__ = [
    "RESOURCES",
    "ExecutorResource",
    "HubResource",
    "LauncherResource",
    "StoreResource",
    "TrackerResource",
    "WebserverResource",
]
