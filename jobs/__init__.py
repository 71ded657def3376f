"""Jobs over the assets, and what starts them: schedules and sensors."""

from jobs.build_in_parallel import build_in_parallel
from jobs.build_targets import build_targets
from jobs.evaluate_checkpoints import evaluate_checkpoints
from jobs.reconcile import reconcile_sensor
from jobs.renew_experiment import renew_experiment, schedules

JOBS = [build_in_parallel, build_targets, renew_experiment]
SCHEDULES = schedules()
SENSORS = [evaluate_checkpoints, reconcile_sensor]
