"""Turns a job and a project's settings into a queued resource, whose hosts start the job."""

import json
import shlex
from dataclasses import dataclass
from pathlib import Path

from google.cloud import tpu_v2

from marin_dagster.launch import tpu_host
from marin_dagster.launch.base import Job
from marin_dagster.launch.names import digest_of, dns_label

PORT = 8476  # where process 0 listens
DIGEST = "marin-digest"  # label
SLUG_CHARACTERS = 40  # of 63 in a name

START = """\
#!/bin/bash
umask 077
folder=$(mktemp -d)
cat > "$folder/host.py" <<'MARIN_HOST'
{host}
MARIN_HOST
cat > "$folder/job.json" <<'MARIN_JOB'
{job}
MARIN_JOB
exec python3 "$folder/host.py" "$folder/job.json"
"""


@dataclass(frozen=True, kw_only=True)
class TpuSettings:
    """What a project asks of TPU VMs, and how patient the launcher is.

    `setup` are lines of bash that each host runs before the job; they bring the project and its
    dependencies there. What a job's environment holds can be read by whoever may read the
    resource: let `setup` fetch secrets. A host that is told to end by the cloud has
    `grace_seconds` for it, a job that is cancelled `cancel_grace_seconds`. `endpoint` is an API
    that is not Google's; one of http:// is used without credentials.
    """

    project: str
    zone: str
    runtime_version: str  # the image of the hosts, as v2-alpha-tpuv5-lite
    setup: tuple[str, ...] = ()
    spot: bool = True
    reservation: str | None = None
    service_account: str | None = None
    network: str | None = None
    subnetwork: str | None = None
    external_addresses: bool = True
    grace_seconds: float = 25.0
    cancel_grace_seconds: float = 8.0
    delete_seconds: float = 900.0
    poll_seconds: float = 5.0  # between two questions about one job
    patience_seconds: float = 60.0  # for an API that does not answer
    cross_region: bool = False  # the bucket may lie elsewhere
    endpoint: str | None = None

    def __post_init__(self) -> None:
        if self.spot and self.reservation:
            raise ValueError(
                f"reservation={self.reservation!r} is not for spot=True; set one of the two"
            )

    @property
    def parent(self) -> str:
        return f"projects/{self.project}/locations/{self.zone}"


def name_of(job: Job, settings: TpuSettings) -> str:
    """A name for this job alone: whoever submits it again, finds it."""
    return dns_label(job, _digest(job, settings), most=SLUG_CHARACTERS)


def _digest(job: Job, settings: TpuSettings) -> str:
    return digest_of(job, settings.parent, settings.setup)


def queued_resource(job: Job, settings: TpuSettings) -> tpu_v2.QueuedResource:
    """One slice, as HostType.accelerator names it, whose hosts run the job."""
    name = name_of(job, settings)
    node = tpu_v2.Node(
        accelerator_type=job.host.accelerator,
        runtime_version=settings.runtime_version,
        metadata={"startup-script": start_script(job, settings)},
        labels={DIGEST: _digest(job, settings)},
        network_config=tpu_v2.NetworkConfig(
            network=settings.network or "",
            subnetwork=settings.subnetwork or "",
            enable_external_ips=settings.external_addresses,
        ),
        service_account=tpu_v2.ServiceAccount(
            email=settings.service_account or "",
            scope=["https://www.googleapis.com/auth/cloud-platform"],
        ),
    )
    spec = tpu_v2.QueuedResource.Tpu.NodeSpec(parent=settings.parent, node_id=name, node=node)
    found = tpu_v2.QueuedResource(tpu=tpu_v2.QueuedResource.Tpu(node_spec=[spec]))
    if settings.spot:
        found.spot = tpu_v2.QueuedResource.Spot()
    else:
        found.guaranteed = tpu_v2.QueuedResource.Guaranteed(reserved=bool(settings.reservation))
        found.reservation_name = settings.reservation or ""
    return found


def start_script(job: Job, settings: TpuSettings) -> str:
    """What each host runs when it starts: `tpu_host`, with the job and the settings in JSON."""
    lines = ["set -e", *settings.setup, f"exec {shlex.join(job.command)}"]
    text = {
        "logs": job.logs,
        "script": "\n".join(lines),
        "environment": dict(job.environment),
        "processes": job.processes,
        "port": PORT,
        "grace_seconds": settings.grace_seconds,
    }
    host = Path(tpu_host.__file__).read_text()
    return START.format(host=host, job=json.dumps(text))
