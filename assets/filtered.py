"""Documents become fewer documents."""

from assets.stage import stage_asset

filtered = stage_asset(
    "filtered",
    group="data",
    kinds={"datatrove"},
    description=(
        "The documents that pass the rules and the classifier; what each rule dropped, and "
        "examples."
    ),
)
