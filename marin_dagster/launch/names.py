"""Turns a job into names that are its own: whoever submits it again, finds it."""

import hashlib
import json
import re
from dataclasses import asdict
from typing import Any

from marin_dagster.launch.base import Job


def digest_of(job: Job, *more: Any) -> str:
    """Twelve hexadecimal digits of all that is to run, and of `more` on where, as JSON values."""
    text = json.dumps([asdict(job), *more], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def dns_label(job: Job, digest: str, *, most: int) -> str:
    """A name as clusters and clouds want it, with at most `most` characters of the job's own."""
    slug = re.sub(r"[^a-z0-9]+", "-", job.name.lower())[:most].strip("-")
    return f"m-{slug}-{digest}"
