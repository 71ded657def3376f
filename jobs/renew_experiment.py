"""Turns a tick of a schedule into a new version of a recurring experiment, and builds it."""

import dagster as dg

from assets import ASSETS
from assets.stage import tag_value
from marin_dagster.experiments import recurring, renew
from marin_dagster.experiments.recurring import Recurrence
from resources import RESOURCES, WebserverResource
from resources.webserver import LOCATION

EXPERIMENT_TAG = "marin/experiment"
ROOT_RUN_TAG = "dagster/root_run_id"
NOT_FINISHED = [
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
]


class Renewal(dg.Config):
    """Which experiment; a run with the occasion of an earlier one goes on with its version."""

    experiment: str
    occasion: str | None = None


@dg.op
def add_version(
    context: dg.OpExecutionContext, config: Renewal, webserver: WebserverResource
) -> list[str]:
    """Adds the new version, shows it in the UI, and returns the addresses of its targets."""
    run = context.run
    occasion = config.occasion or run.tags.get(ROOT_RUN_TAG, run.run_id)
    try:
        targets = [recipe.address for recipe in renew(config.experiment, occasion=occasion)]
    except ValueError as error:
        raise dg.Failure(str(error), metadata={"reason": "bad_input"}) from error
    context.log.info(f"{config.experiment}: new version with the targets {', '.join(targets)}")
    origin = run.remote_job_origin
    fault = webserver.reload(origin.location_name if origin else LOCATION)
    if fault:
        context.log.warning(fault)
    return targets


@dg.op
def build_version(context: dg.OpExecutionContext, targets: list[str]) -> None:
    """Materializes the targets' partitions of `build`, in a process that knows them."""
    everything = dg.Definitions(
        assets=ASSETS, resources=RESOURCES, executor=dg.in_process_executor
    ).resolve_implicit_global_asset_job_def()
    failed = []
    for target in targets:
        result = everything.execute_in_process(
            instance=context.instance,
            asset_selection=[dg.AssetKey("build")],
            partition_key=target,
            raise_on_error=False,
            tags={"marin/target": tag_value(target)},
        )
        context.log.info(f"{target}: {'built' if result.success else 'failed'}")
        if not result.success:
            failed.append(f"{target} (run {result.run_id})")
    if failed:
        raise dg.Failure(
            f"failed: {', '.join(failed)}; mend it and re-execute this run from the failure",
            allow_retries=False,
        )


# Each op runs in a process of its own: the second one loads definitions with the new version.
@dg.job(
    executor_def=dg.multiprocess_executor.configured({"max_concurrent": 1}),
    description="Adds a calendar version to a recurring experiment and builds its targets.",
)
def renew_experiment():
    build_version(add_version())


def schedules() -> list[dg.ScheduleDefinition]:
    """One schedule for each recurring experiment, off until somebody turns it on."""
    return [_schedule(name, recurs) for name, recurs in recurring().items()]


def _schedule(name: str, recurs: Recurrence) -> dg.ScheduleDefinition:
    @dg.schedule(
        name=f"renew_{''.join(c if c.isalnum() else '_' for c in name)}",
        job=renew_experiment,
        cron_schedule=recurs.cron,
        execution_timezone=recurs.timezone,
        default_status=dg.DefaultScheduleStatus.STOPPED,
        description=f"Adds a version of today to the experiment {name}, and builds its targets.",
    )
    def tick(context: dg.ScheduleEvaluationContext) -> dg.RunRequest | dg.SkipReason:
        unfinished = dg.RunsFilter(
            job_name=renew_experiment.name, tags={EXPERIMENT_TAG: name}, statuses=NOT_FINISHED
        )
        for run in context.instance.get_runs(unfinished, limit=1):
            return dg.SkipReason(
                f"run {run.run_id} still builds the version before; no new one is made this time"
            )
        occasion = context.scheduled_execution_time.isoformat()
        return dg.RunRequest(
            run_key=occasion,
            run_config=dg.RunConfig(
                {"add_version": Renewal(experiment=name, occasion=f"schedule {occasion}")}
            ),
            tags={EXPERIMENT_TAG: name},
        )

    return tick
