"""Documents become fewer documents."""

from assets.stage import stage_asset

DESCRIPTION = """\
The documents that pass the rules and the classifier; what each rule dropped, and examples.

| | |
| --- | --- |
| reads | Documents, and a Classifier if the recipe has one |
| makes | Documents; what was dropped lies beside them |
| look at | `counts`: one rule that drops nearly all of it; the examples of every reason |
"""

filtered = stage_asset(
    "filtered",
    group="data",
    kinds={"datatrove"},
    description=DESCRIPTION,
)
