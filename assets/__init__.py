"""The Dagster assets: one file per pipeline stage, and `build`, which builds a whole target."""

from assets.build import build
from assets.checkpoints import checkpoints
from assets.crawl import crawl
from assets.decontaminated import decontaminated
from assets.deduped import deduped
from assets.evals import evals
from assets.exports import exports
from assets.filtered import filtered
from assets.quality import quality
from assets.raw import raw
from assets.reports import reports
from assets.sft import sft
from assets.snapshots import snapshots
from assets.text import text
from assets.tokenized import tokenized
from assets.tokenizers import tokenizers
from marin_dagster.experiments import catalog

STAGES = [
    crawl,
    raw,
    text,
    quality,
    filtered,
    deduped,
    decontaminated,
    tokenizers,
    tokenized,
    checkpoints,
    snapshots,
    sft,
    evals,
    exports,
    reports,
]
ASSETS = [*STAGES, build]

_names = [asset.key.path[-1] for asset in STAGES]
for _recipe in catalog().values():
    if _recipe.stage not in _names:
        raise ValueError(
            f"stage={_recipe.stage!r} of {_recipe.address} ({type(_recipe).__module__}) has no "
            f"asset; use one of {', '.join(_names)}, or add assets/{_recipe.stage}.py"
        )
