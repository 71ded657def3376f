"""Turns checkpoints that are complete into runs of the evaluations that they lack."""

import hashlib
from collections.abc import Iterator, Sequence

import dagster as dg

from assets.stage import tag_value
from jobs.build_targets import build_targets
from marin_dagster.attempt import RUNNING, process_is_gone
from marin_dagster.experiments import catalog
from marin_dagster.kinds import Checkpoint, EvalReport
from marin_dagster.plan import DAMAGED, plan
from marin_dagster.recipe import DEV, Recipe
from marin_dagster.record import RECORD
from marin_dagster.store import Store
from resources import StoreResource

SECONDS = 30  # between two looks
DESCRIPTION = """\
Builds every evaluation whose checkpoints are complete, snapshots of a running training included,
and which is missing itself. A training is never started. A failed evaluation is not tried again
before its checkpoint or its recipe changes.
"""


@dg.sensor(
    job=build_targets,
    minimum_interval_seconds=SECONDS,
    default_status=dg.DefaultSensorStatus.STOPPED,
    description=DESCRIPTION,
)
def evaluate_checkpoints(
    context: dg.SensorEvaluationContext, store: StoreResource
) -> dg.SensorResult | dg.SkipReason:
    requests = [
        dg.RunRequest(
            run_key=key,
            partition_key=recipe.address,
            tags={"marin/target": tag_value(recipe.address)},
        )
        for recipe, key in due(store.open())
    ]
    if not requests:
        return dg.SkipReason("no complete checkpoint lacks an evaluation")
    return dg.SensorResult(run_requests=requests)


def due(store: Store) -> Iterator[tuple[Recipe, str]]:
    """The evaluations to build now, each with a key that names what would be evaluated."""
    for recipe in catalog().values():
        if not isinstance(recipe, EvalReport):
            continue
        models = [item for item in recipe.inputs if isinstance(item, Checkpoint)]
        if not models or not all(_exists(store, item) for item in models):
            continue
        if recipe.version != DEV and _exists(store, recipe):
            continue
        steps = plan(store, [recipe])
        if not steps[recipe.address].runs or _is_running(store, recipe):
            continue
        if any(step.judgement.action == DAMAGED for step in steps.values()):
            continue
        if any(step.runs and isinstance(step.recipe, Checkpoint) for step in steps.values()):
            continue
        yield recipe, _run_key(store, recipe, models)


def _exists(store: Store, recipe: Recipe) -> bool:
    return store.storage.size(f"{store.folder(recipe)}/{RECORD}") is not None


def _is_running(store: Store, recipe: Recipe) -> bool:
    last = store.last_attempt(recipe)
    return last is not None and last.state == RUNNING and not process_is_gone(last)


def _run_key(store: Store, recipe: Recipe, models: Sequence[Recipe]) -> str:
    """The same for the same evaluation of the same weights: a key is used once."""
    records = [store.record(item) for item in models]
    digests = [record.digest for record in records if record is not None]
    text = " ".join([recipe.fingerprint, *digests])
    return f"{recipe.address} {hashlib.sha256(text.encode()).hexdigest()[:16]}"
