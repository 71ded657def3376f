"""Turns commands into upkeep of the store: `marin gc | adopt | verify`."""

import sys

import click

from marin_dagster.environment import read_environment
from marin_dagster.experiments import find
from marin_dagster.show import human_bytes
from marin_dagster.targets import resolve
from marin_dagster.terminal import clear_errors, console
from marin_dagster.upkeep import adopt, leftovers, source_files, verify


@click.command(name="gc")
@click.argument("pattern", default="*")
@click.option("--run", is_flag=True, help="Remove; without it the leftovers are only listed.")
@clear_errors
def gc_command(pattern: str, run: bool) -> None:
    """List what no artifact needs under the addresses that match PATTERN, and remove it."""
    store = read_environment().store()
    total = count = 0
    for item in leftovers(store, pattern):
        console.print(f"{human_bytes(item.bytes):>8}  {item.what}  {item.where}", markup=False)
        total, count = total + item.bytes, count + 1
        if run:
            item.remove()
    done = "removed" if run else "to remove"
    console.print(f"\n{human_bytes(total)} in {count} leftovers {done}, prefix {store.prefix}")
    if store.prefix.startswith(("gs://", "gcs://")):
        console.print("Unfinished uploads to Google Cloud Storage cannot be listed; they expire.")
    if count and not run:
        console.print("Nothing was removed. Add --run to remove.")


@click.command(name="adopt")
@click.argument("address")
@click.option("--from", "source", required=True, help="A folder, or the fsspec URL of one.")
@click.option("--run", is_flag=True, help="Copy; without it the files are only counted.")
@click.option("--force", is_flag=True, help="Replace an artifact that is complete.")
@clear_errors
def adopt_command(address: str, source: str, run: bool, force: bool) -> None:
    """Bring existing data in as the artifact at ADDRESS, with a record that says so."""
    recipe = find(address)
    store = read_environment().store()
    if not run:
        files = source_files(source)
        console.print(f"{len(files)} files of {source} would become {recipe.address}", markup=False)
        console.print("Nothing was copied. Add --run to copy.")
        return
    record = adopt(store, recipe, source, force=force).record
    size = human_bytes(record.size_bytes)
    console.print(f"{recipe.address}: {len(record.files)} files, {size}, at {store.url(recipe)}")


@click.command(name="verify")
@click.argument("targets", nargs=-1, required=True)
@clear_errors
def verify_command(targets: tuple[str, ...]) -> None:
    """Read every file of the artifacts at TARGETS and compare it with the record."""
    store = read_environment().store()
    damaged = 0
    for recipe in resolve(targets):
        record, damage = verify(store, recipe)
        if record is None and not damage and recipe.address not in targets:
            continue  # never built
        damaged += record is None or bool(damage)
        if record is None and not damage:
            console.print(f"{recipe.address}  NOT COMPLETE  {store.url(recipe)}", markup=False)
        elif damage:
            console.print(f"{recipe.address}  DAMAGED  {'; '.join(damage)}", markup=False)
        elif record is not None:
            size = human_bytes(record.size_bytes)
            console.print(f"{recipe.address}  sound  {len(record.files)} files, {size}")
    sys.exit(1 if damaged else 0)
