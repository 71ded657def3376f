"""Jobs over the assets."""

from jobs.build_in_parallel import build_in_parallel

JOBS = [build_in_parallel]
