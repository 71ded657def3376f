"""Turns a job and a zone of Cloud TPU into what is missing there: type, image, hosts, bucket."""

from collections.abc import Iterator

from google.api_core.exceptions import NotFound
from google.cloud import tpu_v2

from marin_dagster.launch.base import Job
from marin_dagster.launch.manifests import slice_hosts
from marin_dagster.launch.tpu_script import TpuSettings
from marin_dagster.region import contains
from marin_dagster.storage import Storage, StorageError

SECONDS = 15.0


def missing(client: tpu_v2.TpuClient, job: Job, settings: TpuSettings) -> list[str]:
    """What stands in the way of the job; asks Cloud TPU and the bucket, and changes nothing."""
    found = [*_zone(client, settings)]
    return found or [*_hosts(client, job, settings), *_bucket(job, settings)]


def _zone(client: tpu_v2.TpuClient, settings: TpuSettings) -> Iterator[str]:
    try:
        client.get_location({"name": settings.parent}, timeout=SECONDS)
    except NotFound:
        yield f"{settings.project} has no zone {settings.zone!r} with TPUs; name another"


def _hosts(client: tpu_v2.TpuClient, job: Job, settings: TpuSettings) -> Iterator[str]:
    accelerator, version = job.host.accelerator, settings.runtime_version
    try:
        name = f"{settings.parent}/runtimeVersions/{version}"
        client.get_runtime_version(name=name, timeout=SECONDS)
    except NotFound:
        yield f"{settings.zone} has no runtime_version {version!r}; name one that it has"
    try:
        name = f"{settings.parent}/acceleratorTypes/{accelerator}"
        kind = client.get_accelerator_type(name=name, timeout=SECONDS)
    except NotFound:
        yield f"{settings.zone} has no {accelerator!r}; name a type or a zone that has it"
        return
    chips = job.host.accelerators
    counts = {slice_hosts(one.topology, max(1, chips)) for one in kind.accelerator_configs}
    if chips and counts and job.processes not in counts:
        yield (
            f"processes={job.processes}, but {accelerator} with {chips} chips in each host has "
            f"{min(counts)} hosts; a job has one process for each host of one slice"
        )


def _bucket(job: Job, settings: TpuSettings) -> Iterator[str]:
    if not job.logs.startswith("gs://"):
        yield f"{job.logs} is out of reach for hosts of Cloud TPU; set MARIN_PREFIX to gs://…"
        return
    region = settings.zone.rpartition("-")[0]
    try:
        regions = Storage(job.logs, patience_seconds=SECONDS).regions()
    except StorageError as error:
        yield f"the bucket of {job.logs} cannot be read: {error}; create it, or grant the right"
        return
    if not settings.cross_region and not any(contains(one, region) for one in regions):
        yield (
            f"{settings.zone} is not where the bucket of {job.logs} lies, {', '.join(regions)}: "
            "every byte would cross regions; use another zone or bucket, or set cross_region"
        )
