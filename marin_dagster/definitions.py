"""What Dagster loads: assets, jobs and resources. Imports nothing heavy and touches no device."""

import dagster as dg

from assets import ASSETS
from jobs import JOBS, SCHEDULES, SENSORS
from resources import RESOURCES

defs = dg.Definitions(
    assets=ASSETS,
    jobs=JOBS,
    schedules=SCHEDULES,
    sensors=SENSORS,
    resources=RESOURCES,
    executor=dg.in_process_executor,
)
