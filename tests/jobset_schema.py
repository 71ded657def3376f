"""What a JobSet may have: the part of v1alpha2 that is used here, and nothing else.

After the types of kubernetes-sigs/jobset, api/jobset/v1alpha2/jobset_types.go. The Jobs within are
checked as Jobs.
"""

NAME = {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", "maxLength": 63}
COUNT = {"type": "integer", "minimum": 0}


def closed(required: list[str], **properties: dict) -> dict:
    """An object with these properties and no others."""
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


TEXTS = {"type": "object", "additionalProperties": {"type": "string"}}
NETWORK = closed(
    [],
    enableDNSHostnames={"type": "boolean"},
    subdomain=NAME,
    publishNotReadyAddresses={"type": "boolean"},
)
FAILURE_POLICY = closed(
    [],
    maxRestarts=COUNT,
    restartStrategy={"enum": ["Recreate", "BlockingRecreate", "InPlaceRestart"]},
)
REPLICATED_JOB = closed(
    ["name", "template"],
    name=NAME,
    groupName=NAME,
    replicas=COUNT,
    template=closed(
        ["spec"],
        metadata=closed([], labels=TEXTS, annotations=TEXTS),
        spec={"type": "object"},
    ),
)
JOBSET = closed(
    ["apiVersion", "kind", "metadata", "spec"],
    apiVersion={"const": "jobset.x-k8s.io/v1alpha2"},
    kind={"const": "JobSet"},
    metadata=closed(["name"], name=NAME, namespace=NAME, labels=TEXTS, annotations=TEXTS),
    spec=closed(
        ["replicatedJobs"],
        replicatedJobs={"type": "array", "items": REPLICATED_JOB, "minItems": 1},
        network=NETWORK,
        failurePolicy=FAILURE_POLICY,
        suspend={"type": "boolean"},
        ttlSecondsAfterFinished=COUNT,
    ),
)
