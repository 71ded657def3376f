"""Pages become documents."""

from assets.stage import stage_asset

text = stage_asset(
    "text",
    group="data",
    kinds={"trafilatura"},
    description=(
        "The main text of every page, without menus, adverts and footers; every page is "
        "accounted for."
    ),
)
