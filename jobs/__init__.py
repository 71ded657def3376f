"""Jobs over the assets, and the sensors that watch them."""

from jobs.build_in_parallel import build_in_parallel
from jobs.reconcile import reconcile_sensor

JOBS = [build_in_parallel]
SENSORS = [reconcile_sensor]
