"""Turns commands into plans, builds and views: `marin plan`, `marin build`, `marin status`, ..."""

import sys
import time
from collections.abc import Sequence

import click
from rich.table import Table

from marin_dagster import experiments
from marin_dagster.environment import read_environment
from marin_dagster.experiments import catalog, find
from marin_dagster.plan import DAMAGED, describe, drift_behind, plan
from marin_dagster.recipe import Recipe, payload_diff
from marin_dagster.sample_cli import sample_command
from marin_dagster.show import (
    age,
    artifact_lines,
    artifact_state,
    human_bytes,
    plan_lines,
)
from marin_dagster.store import Store
from marin_dagster.targets import resolve
from marin_dagster.terminal import clear_errors, console
from marin_dagster.upkeep_cli import adopt_command, gc_command, verify_command


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Experiments as values, artifacts with records.

    TARGETS are addresses, stage/name@version, or shell patterns over them, 'evals/*@2026.*'.
    """


for command in (sample_command, gc_command, adopt_command, verify_command):
    main.add_command(command)


@main.command(name="plan")
@click.argument("targets", nargs=-1, required=True)
@click.option("--force", is_flag=True, help="Run the targets even if they are complete.")
@clear_errors
def plan_command(targets: tuple[str, ...], force: bool) -> None:
    """Print what building TARGETS would reuse and run, why, and what it costs. Runs nothing."""
    _print_plan(_store(), resolve(targets), force)


@main.command()
@click.argument("targets", nargs=-1, required=True)
@click.option("--run", is_flag=True, help="Build; without it the plan is printed, as by `plan`.")
@click.option("--force", is_flag=True, help="Build the targets even if they are complete.")
@clear_errors
def build(targets: tuple[str, ...], run: bool, force: bool) -> None:
    """Build TARGETS and all that they need, through Dagster, in the foreground."""
    recipes = resolve(targets)
    store = _store()
    _print_plan(store, recipes, force)
    if not run:
        console.print("\nNothing was run. Add --run to build.")
        return
    from marin_dagster.foreground import build_in_foreground, reconcile_runs

    for line in reconcile_runs(store):
        console.print(line, markup=False, style="yellow")
    started = time.monotonic()
    if not build_in_foreground(recipes, force=force):
        sys.exit(1)
    for recipe in recipes:
        console.print(f"{recipe.address} is at {store.url(recipe)}")
    console.print(f"done in {time.monotonic() - started:,.1f} s")


@main.command()
@click.argument("experiment")
@click.option("--version", help="A calendar version; by default that of today.")
@click.option("--run", is_flag=True, help="Build the targets of the new version.")
@clear_errors
def renew(experiment: str, version: str | None, run: bool) -> None:
    """Add a version to EXPERIMENT, which recurs, and show it to a running `dagster dev`."""
    targets = experiments.renew(experiment, version=version)
    console.print(f"{experiment} has the version {targets[0].version}: its targets are")
    for target in targets:
        console.print(f"  {target.address}")
    from resources import WebserverResource

    fault = WebserverResource().reload()
    if fault:
        console.print(f"note: {fault}", style="yellow")
    if run:
        from marin_dagster.foreground import build_in_foreground

        if not build_in_foreground(targets, force=False):
            sys.exit(1)


@main.command()
@clear_errors
def reconcile() -> None:
    """End runs whose worker was killed or whose machine died. `dagster dev` does so by itself."""
    from marin_dagster.foreground import reconcile_runs

    found = reconcile_runs(_store())
    for line in found:
        console.print(line, markup=False)
    if not found:
        console.print("every run is what it says")


@main.command()
@click.argument("targets", nargs=-1)
@clear_errors
def status(targets: tuple[str, ...]) -> None:
    """List TARGETS, by default all artifacts, and their state."""
    store = _store()
    table = Table(box=None, pad_edge=False)
    for title in ("artifact", "state", "size", "made", "notes"):
        table.add_column(title, overflow="fold")
    for recipe in resolve(targets or ("*",)):
        state, notes, record = artifact_state(store, recipe)
        size = human_bytes(record.size_bytes) if record else ""
        table.add_row(recipe.address, state, size, age(record.ended) if record else "", notes)
    console.print(table)
    console.print(f"\nprefix: {store.prefix}")


@main.command()
@click.argument("address")
@clear_errors
def show(address: str) -> None:
    """Print the record of an artifact: recipe, counts, numbers, inputs, provenance, attempts."""
    for line in artifact_lines(_store(), find(address)):
        console.print(line, markup=False)


@main.command()
@click.argument("a")
@click.argument("b")
@clear_errors
def diff(a: str, b: str) -> None:
    """Print the recipe fields in which the artifacts A and B differ."""
    rows = payload_diff(find(a).payload, find(b).payload)
    if not rows:
        console.print(f"{a} and {b} have the same recipe")
        return
    table = Table(box=None, pad_edge=False)
    for title in ("field", a, b):
        table.add_column(title, overflow="fold")
    for path, old, new in rows:
        table.add_row(path, str(old), str(new))
    console.print(table)


def _store() -> Store:
    return read_environment().store()


def _print_plan(store: Store, recipes: Sequence[Recipe], force: bool) -> None:
    steps = plan(store, recipes, force=force, known=catalog().values())
    for line in plan_lines(steps, recipes):
        console.print(line, markup=False)
    for address, judgement in drift_behind(store, recipes, steps).items():
        console.print(f"behind a reused artifact: {address}  {describe(judgement)}", style="yellow")
    if store.drift == "error":
        drifted = [
            step for step in steps.values() if step.judgement.drifted or step.judgement.stale
        ]
        for step in drifted:
            if not step.runs:
                console.print(
                    f"MARIN_DRIFT=error refuses to reuse {step.recipe.address}", style="red"
                )
    damaged = [step for step in steps.values() if step.judgement.action == DAMAGED]
    if damaged:
        names = ", ".join(step.recipe.address for step in damaged)
        console.print(f"damaged, needs --force on it: {names}", style="red")
