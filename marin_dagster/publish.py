"""Turns files that a build made on its way into artifacts of their own, while it goes on."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from marin_dagster.recipe import Recipe, StageError, Summary

if TYPE_CHECKING:
    from marin_dagster.context import BuildContext


def publish(context: BuildContext, recipe: Recipe, folder: str, summary: Summary) -> None:
    """Commits the files of `folder` as the artifact of `recipe`, and removes the folder.

    What this build published before a kill is kept: it goes on to the same result. What an earlier
    build of the same address published is replaced.
    """
    if recipe.address not in {item.address for item in context.recipe.makes}:
        raise StageError(
            "error",
            f"{context.recipe.address} publishes {recipe.address}, which is not among those that "
            "it makes",
        )
    context.attempt.check()  # one that was overtaken must not replace what its successor publishes
    mark = _mark(context, recipe)
    if mark.exists() and context.store.record(recipe) is not None:
        context.log(f"{recipe.address} was published before; it is kept")
    else:

        def take(target: BuildContext) -> Summary:
            shutil.copytree(folder, target.out, copy_function=_link, dirs_exist_ok=True)
            context.attempt.check()
            return summary

        run_id = context.attempt.info.run_id
        context.store.build(recipe, work=take, force=True, run_id=run_id, inputs=context.inputs)
        mark.parent.mkdir(exist_ok=True)
        mark.touch()
        context.log(f"{recipe.address} is published")
    shutil.rmtree(folder)


def refuse_unpublished(context: BuildContext) -> None:
    """Raises StageError when a build ends and has not published everything that it makes."""
    for recipe in context.recipe.makes:
        if not _mark(context, recipe).exists() or context.store.record(recipe) is None:
            raise StageError(
                "error",
                f"{context.recipe.address} ended without {recipe.address}, which it makes on its "
                f"way; build it again with `marin build {context.recipe.address} --run --force`",
            )


def _mark(context: BuildContext, recipe: Recipe) -> Path:
    """A file that lives as long as what this build may resume from."""
    return Path(context.work, ".published", recipe.address.replace("/", "_"))


def _link(source: str, target: str) -> None:
    """A second name for the same bytes, which nobody changes; a copy on another filesystem."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
