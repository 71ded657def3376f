"""Turns the records behind an experiment into one page that tells it from data to scores."""

from dataclasses import dataclass
from typing import ClassVar

from marin_dagster.kinds import Report
from marin_dagster.recipe import Context, Recipe, Summary


@dataclass(frozen=True, kw_only=True)
class ExperimentReport(Report):
    """Tells where every artifact behind the targets came from, what was dropped, what was reached.

    The page covers all that the targets were made from; the targets' plots are on it.
    """

    stage: ClassVar[str] = "reports"

    targets: tuple[Recipe, ...]
    title: str = ""  # empty: the name of the report
    description: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.targets:
            raise ValueError(
                f"targets=() of {self.address} is empty; name the artifacts to report on"
            )

    def build(self, ctx: Context) -> Summary:
        from marin_dagster.openness.report_build import build_page

        return build_page(self, ctx)
