"""Turns the catalog of recipes into Dagster partitions, and inputs into partition mappings."""

from collections import defaultdict

import dagster as dg

from marin_dagster.experiments import catalog

MAX_TARGETS = 50_000  # benchmarks/graph_scale.py: pages and launches stay below 5 s up to here


def keys_of(stage: str) -> list[str]:
    """The `name@version` keys of a stage."""
    return [recipe.key for recipe in catalog().values() if recipe.stage == stage]


def partitions_of(stage: str) -> dg.StaticPartitionsDefinition:
    return dg.StaticPartitionsDefinition(keys_of(stage))


def deps_of(stage: str) -> list[dg.AssetDep]:
    """One dependency per upstream stage, with the exact keys that each key reads.

    Only built-in static mappings survive the way to the webserver and the daemon. Dagster knows no
    static mapping of an asset onto itself: a run that extends another is ordered by `build`, and
    refuses to start by itself before the other one is complete.
    """
    edges: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for recipe in catalog().values():
        if recipe.stage == stage:
            for item in recipe.needs:
                if item.stage == stage:
                    continue
                edges[item.stage][item.key].add(recipe.key)
    return [
        dg.AssetDep(
            upstream,
            partition_mapping=dg.StaticPartitionMapping(
                {key: sorted(readers) for key, readers in mapping.items()}
            ),
        )
        for upstream, mapping in sorted(edges.items())
    ]


def targets() -> dg.StaticPartitionsDefinition:
    """Every artifact of every experiment, as `stage/name@version`.

    Raises ValueError when they are more than the UI can show in time.
    """
    found = list(catalog())
    if len(found) > MAX_TARGETS:
        raise ValueError(
            f"the experiments have {len(found):,} artifacts, more than the {MAX_TARGETS:,} that "
            "Dagster can show in time; take old versions out of VERSIONS, or split the experiments "
            "over environments of their own; their artifacts stay where they are"
        )
    return dg.StaticPartitionsDefinition(found)
