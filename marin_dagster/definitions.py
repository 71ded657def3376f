"""What Dagster loads: assets, jobs and resources. Imports nothing heavy and touches no device."""

import dagster as dg

from assets import ASSETS
from jobs import JOBS, SENSORS
from resources import RESOURCES

defs = dg.Definitions(
    assets=ASSETS,
    jobs=JOBS,
    sensors=SENSORS,
    resources=RESOURCES,
    executor=dg.in_process_executor,
)
