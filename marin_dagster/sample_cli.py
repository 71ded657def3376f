"""Turns an address into rows to look at: `marin sample`, kept ones and dropped ones."""

import os

import click

from marin_dagster.environment import read_environment
from marin_dagster.experiments import find
from marin_dagster.terminal import clear_errors, console

CHARACTERS = 400  # of a text
SHOWN = ("source", "url", "id", "excerpt", "message")  # of an example, what it has
EVIDENCE = ("duplicates.jsonl", "contaminated.jsonl")


@click.command(name="sample")
@click.argument("address")
@click.option("--number", "-n", default=5, show_default=True, help="How many rows are drawn.")
@click.option("--seed", default=0, show_default=True, help="Another seed draws other rows.")
@click.option(
    "--whole", is_flag=True, help=f"Whole texts, not their first {CHARACTERS} characters."
)
@clear_errors
def sample_command(address: str, number: int, seed: int, whole: bool) -> None:
    """Print rows of the data at ADDRESS drawn at random, and examples of what was dropped."""
    from marin_dagster.data.sample import draw
    from marin_dagster.data.tokenizer import load_tokenizer

    recipe = find(address)
    store = read_environment().store()
    record, folder = store.read_input(recipe)
    used = getattr(recipe, "tokenizer", None)
    tokenizer = None if used is None else load_tokenizer(store.read_input(used)[1])
    for row in draw(folder, number, seed, tokenizer):
        console.print(f"\n{row.where}  {row.source}  {row.id}", style="bold", markup=False)
        text = row.text if whole or len(row.text) <= CHARACTERS else f"{row.text[:CHARACTERS]} …"
        console.print(text, markup=False, highlight=False)
    counts = record.summary.counts
    for name in EVIDENCE:
        if os.path.exists(path := os.path.join(folder, name)):
            console.print(f"\nevidence of every removal: {path}", markup=False)
    if counts is not None:
        console.print(
            f"\n{counts.kept:,} of {counts.read:,} {counts.unit} kept", style="bold", markup=False
        )
        for kind, reasons in (("dropped", counts.dropped), ("errors", counts.errors)):
            for reason, count in reasons.items():
                console.print(f"{kind} {count:,}  {reason}", markup=False)
                for row in record.summary.tables.get(kind, ()):
                    if reason in (row.get("reason"), row.get("outcome")):
                        said = "  ".join(row[name] for name in SHOWN if row.get(name))
                        console.print(f"    {said}", markup=False, highlight=False)
