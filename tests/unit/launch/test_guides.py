"""The guides of the launchers: their settings can be made, their rights are those asked for."""

import kubernetes_validate
import pytest
import yaml

from marin_dagster.launch.base import Job
from marin_dagster.launch.kubernetes_checks import JOB_RIGHTS, RIGHTS, SLICE_RIGHTS
from marin_dagster.launch.manifests import KubernetesSettings, job_manifest
from tests.fake_kubernetes import VERSION, validate
from tests.integration.test_docs import ALL


def block(page: str, language: str) -> str:
    (found,) = [one for one in ALL if (one.page, one.language) == (page, language)]
    return found.text


@pytest.mark.parametrize("page", ["kubernetes", "tpu"])
def test_the_launcher_of_the_guide_can_be_made(page):
    names = {}
    exec(block(f"docs/how-to/{page}.md", "python"), names)
    hosts = [names[name] for name in ("h100", "v5e") if name in names]
    for host in hosts:
        job = Job(name="a", command=["a"], environment={}, logs="l", processes=4, host=host)
        settings = names["launcher"]._settings
        if isinstance(settings, KubernetesSettings):
            validate(job_manifest(job, settings))


def test_the_role_of_the_guide_has_just_the_rights_that_preflight_asks_for():
    role = yaml.safe_load(block("docs/how-to/kubernetes.md", "yaml"))
    kubernetes_validate.validate(role, VERSION, strict=True)
    given = {
        (verb, group, resource)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    asked = {
        (verb, group, resource)
        for verbs, group, resource in RIGHTS + JOB_RIGHTS + SLICE_RIGHTS
        for verb in verbs.split()
    }
    assert given == asked
