"""Manifests against the schemas of Kubernetes and JobSet, and against the rules of Indexed Jobs."""

import dataclasses

import pytest

from marin_dagster.launch.base import HostType, Job
from marin_dagster.launch.manifests import (
    Folder,
    KubernetesSettings,
    job_manifest,
    name_of,
    service_manifest,
    slice_hosts,
)
from tests.fake_kubernetes import validate
from tests.kubernetes_http import Refusal

SETTINGS = KubernetesSettings(
    namespace="lab",
    image="lab:1",
    queue="gpus",
    service_account="trainer",
    image_pull_secrets=("registry",),
    secrets=("hub-token",),
    folders=(Folder(path="/claim", claim="shared"), Folder(path="/bucket", bucket="shared")),
    node_selector={"pool": "a"},
    tolerations=({"key": "spot", "operator": "Exists"},),
)
GPU = HostType(
    name="h100", accelerator="nvidia-h100-80gb", accelerators=8, cpus=16, memory_bytes=2**37
)
TPU = HostType(name="v5e", accelerator="tpu-v5-lite-podslice", accelerators=4, topology="4x4")


def job(host: HostType = GPU, **fields) -> Job:
    given = {"name": "checkpoints/A long_name " * 5, "processes": 4, **fields}
    return Job(command=["python", "-c", ""], environment={"A": "1"}, logs="l", host=host, **given)


@pytest.mark.parametrize("host", [GPU, TPU, HostType(name="cpu")], ids=lambda host: host.name)
def test_every_manifest_is_what_the_schemas_allow(host):
    manifest = job_manifest(job(host), SETTINGS)
    validate(manifest)
    validate(service_manifest(manifest["metadata"]["name"], {**manifest["metadata"], "uid": "1"}))


@pytest.mark.parametrize("host", [GPU, TPU], ids=lambda host: host.name)
def test_a_misspelt_field_is_found(host):
    manifest = job_manifest(job(host), SETTINGS)
    spec = manifest["spec"]
    if manifest["kind"] == "JobSet":
        spec = spec["replicatedJobs"][0]["template"]["spec"]
    spec["backofflimit"] = 0
    with pytest.raises(Refusal, match="backofflimit"):
        validate(manifest)
    del spec["backofflimit"]
    manifest["spec"]["failurepolicy"] = {}
    with pytest.raises(Refusal, match="failurepolicy"):
        validate(manifest)


def test_a_host_type_becomes_nodes_and_amounts():
    pod = job_manifest(job(), SETTINGS)["spec"]["template"]["spec"]
    selector = {"pool": "a", "cloud.google.com/gke-accelerator": "nvidia-h100-80gb"}
    assert pod["nodeSelector"] == selector
    resources = pod["containers"][0]["resources"]
    assert resources["limits"] == {"nvidia.com/gpu": "8", "memory": str(2**37)}
    assert resources["requests"] == {**resources["limits"], "cpu": "16"}
    assert pod["tolerations"][-1]["key"] == "nvidia.com/gpu"
    (part,) = job_manifest(job(TPU), SETTINGS)["spec"]["replicatedJobs"]
    pod = part["template"]["spec"]["template"]["spec"]
    assert pod["nodeSelector"]["cloud.google.com/gke-tpu-topology"] == "4x4"
    assert pod["containers"][0]["resources"]["limits"] == {"google.com/tpu": "4"}


def test_the_coordinator_is_process_0_by_its_name_in_dns():
    for host, middle in ((GPU, "-0"), (TPU, "-slice-0-0")):
        manifest = job_manifest(job(host), SETTINGS)
        name = manifest["metadata"]["name"]
        assert f"'{name}{middle}.{name}:8476'" in str(manifest)
    alone = job_manifest(job(HostType(name="cpu"), processes=1), SETTINGS)
    assert "MARIN_COORDINATOR" not in str(alone)


def test_a_name_is_that_of_one_job_and_image():
    name = name_of(job(), SETTINGS)
    assert name == name_of(job(), SETTINGS)
    others = [name_of(dataclasses.replace(job(), logs="m"), SETTINGS)]
    others += [name_of(job(), dataclasses.replace(SETTINGS, image="lab:2"))]
    assert len({name, *others}) == 3


def test_hosts_that_a_slice_has_not_are_refused():
    assert (slice_hosts("4x4", 4), slice_hosts("2x2x2", 4), slice_hosts("2x2", 4)) == (4, 2, 1)
    with pytest.raises(ValueError, match="has 4 hosts"):
        job_manifest(job(TPU, processes=8), SETTINGS)
    with pytest.raises(ValueError, match="topology='4by4'"):
        slice_hosts("4by4", 4)
    with pytest.raises(ValueError, match="exactly one"):
        Folder(path="/a")
