"""Documents and conversations become token caches."""

from assets.stage import stage_asset

tokenized = stage_asset(
    "tokenized",
    group="data",
    kinds={"numpy"},
    description=(
        "Token ids, ready to be read by training at random; read back and compared before "
        "they are committed."
    ),
)
