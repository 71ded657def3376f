"""Marin's 535B-A23B run as recipes, and the ladder of smaller runs beside it.

Sizes, steps, rates and the moments at which the mixture changes are those of issue 8435 of
marin-community/marin. The data are public stand-ins: the 200 cells that the run reads are private,
so their weights here are guesses, and a tokenizer of the same size is trained.

`marin plan checkpoints/hero@2026.11.30` shows what it takes. Needs the network and a Hugging Face
token that may read nvidia/Nemotron-CC-v2 and bigcode/starcoderdata.
"""

from typing import Any, NamedTuple

from marin_dagster.data.dedup import Deduplicate
from marin_dagster.data.raw import HubDataset
from marin_dagster.data.tokenize import TokenizeDocuments
from marin_dagster.data.tokenizer import TrainTokenizer
from marin_dagster.kinds import Documents, TokenCache, Tokenizer
from marin_dagster.models.hero import HeroConfig
from marin_dagster.openness.report import ExperimentReport
from marin_dagster.recipe import Recipe
from marin_dagster.training import heuristics
from marin_dagster.training.optimizer import MuonH
from marin_dagster.training.phases import Stage
from marin_dagster.training.pretrain import Pretrain
from marin_dagster.training.schedule import Linear

VERSIONS = ("dev", "2026.11.30")
SEED = 0
VOCAB_SIZE = 128_256
ROW = 4_096  # tokens
HELD_OUT = 1e-4  # of the documents of every source
DESCRIPTION = (
    "The 535B-A23B mixture of experts and four smaller runs by the same recipe, at equal tokens "
    "per active parameter: what they cost, and what became of them."
)


class Rung(NamedTuple):
    """Size and length of a run; all else follows from the width."""

    name: str
    hidden_dim: int
    num_layers: int
    batch_size: int  # rows
    num_steps: int


LADDER = (
    Rung("hero-d768", 768, 8, 1_024, 11_420),
    Rung("hero-d1024", 1_024, 12, 2_048, 15_276),
    Rung("hero-d1536", 1_536, 16, 6_144, 15_128),
    Rung("hero-d2048", 2_048, 22, 11_264, 20_072),
)
HERO = Rung("hero", 6_144, 48, 11_264, 390_251)
NEW_MIXTURE, COOLDOWN = 108_000 / HERO.num_steps, 312_192 / HERO.num_steps  # shares of a run


class Source(NamedTuple):
    """A dataset on the hub and its weight from the start, from the new mixture, in the cooldown."""

    name: str
    repo: str
    revision: str
    subset: str | None
    text_field: str
    weights: tuple[float, float, float]


NEMOTRON, NEMOTRON_CODE = "nvidia/Nemotron-CC-v2", "nvidia/Nemotron-CC-Code-v1"
SOURCES = (
    Source("nemotron-hq", NEMOTRON, "229a2e7", "High-Quality", "text", (0.25, 0.25, 0.25)),
    Source("nemotron-syn", NEMOTRON, "229a2e7", "High-Quality-Synthetic", "text", (0.3, 0.3, 0.25)),
    Source("nemotron-mhq", NEMOTRON, "229a2e7", "Medium-High-Quality", "text", (0.2, 0.1, 0.05)),
    Source("nemotron-code", NEMOTRON_CODE, "5c5bebc", None, "text", (0.15, 0.2, 0.2)),
    Source("starcoder", "bigcode/starcoderdata", "9fc30b5", None, "content", (0.05, 0.05, 0.1)),
    Source(
        "finemath", "HuggingFaceTB/finemath", "8f233cf", "finemath-3plus", "text", (0.05, 0.1, 0.15)
    ),
)


def experiment(version: str) -> tuple[Recipe, ...]:
    """The ladder, the hero, and the report on them."""
    documents = [_documents(source, version) for source in SOURCES]
    tokenizer = TrainTokenizer(
        name="hero", version=version, documents=tuple(documents), vocab_size=VOCAB_SIZE
    )
    train, heldout = (
        tuple(_tokens(source, tokenizer, split) for source in documents)
        for split in ("train", "validation")
    )
    runs = tuple(_run(rung, version, tokenizer, train, heldout) for rung in (*LADDER, HERO))
    return (ExperimentReport(name="hero", version=version, targets=runs, description=DESCRIPTION),)


def model(rung: Rung) -> HeroConfig:
    """The hero's architecture at the width and depth of a rung."""
    heads = heuristics.num_heads(rung.hidden_dim)
    kv_heads = max(1, heads // 4)
    return HeroConfig(
        hidden_dim=rung.hidden_dim,
        num_layers=rung.num_layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        global_kv_heads=max(1, kv_heads // 2),
        head_dim=128,
        expert_dim=rung.hidden_dim // 2,
        expert_latent_dim=rung.hidden_dim // 2,
        num_experts=384,
        num_experts_per_token=8,
        num_shared_experts=2,
        sliding_window=2_048,
        seq_len=ROW,
    )


def optimizer(rung: Rung) -> MuonH:
    """MuonH with the rates of the fit that the hero used, for its tokens as planned (18.0T)."""
    per_step = rung.batch_size * ROW
    tokens = _rounded(rung.num_steps * per_step, digits=3)
    rate = heuristics.hero_learning_rate(tokens, rung.hidden_dim, per_step)
    return MuonH(
        learning_rate=_rounded(heuristics.muonh_learning_rate(rate)),
        adam_learning_rate=_rounded(rate),
        beta1=0.9,
        beta2=_rounded(heuristics.beta2(per_step)),
        epsilon=_rounded(heuristics.epsilon(tokens, per_step)),
        schedule=Linear(
            warmup_steps=heuristics.warmup_steps(rung.num_steps),
            final_ratio=heuristics.FINAL_RATIO,
        ),
    )


def _run(
    rung: Rung,
    version: str,
    tokenizer: Tokenizer,
    train: tuple[TokenCache, ...],
    heldout: tuple[TokenCache, ...],
) -> Pretrain:
    mixtures = [
        tuple(zip(train, weights, strict=True))
        for weights in zip(*(source.weights for source in SOURCES), strict=True)
    ]
    later: list[Any] = [
        Stage(data=data, from_step=round(share * rung.num_steps))
        for data, share in zip(mixtures[1:], (NEW_MIXTURE, COOLDOWN), strict=True)
    ]
    return Pretrain(
        name=rung.name,
        version=version,
        tokenizer=tokenizer,
        data=mixtures[0],
        stages=tuple(later),
        validation=heldout,
        model=model(rung),
        optimizer=optimizer(rung),
        num_steps=rung.num_steps,
        batch_size=rung.batch_size,
        seed=SEED,
        z_loss_weight=1e-4,
        steps_per_eval=min(3_000, rung.num_steps // 20),
        steps_per_checkpoint=240,  # an hour of the hero's steps
    )


def _documents(source: Source, version: str) -> Documents:
    raw = HubDataset(
        name=source.name,
        version=version,
        repo=source.repo,
        revision=source.revision,
        subset=source.subset,
        text_field=source.text_field,
    )
    return Deduplicate(name=source.name, version=version, documents=raw)


def _tokens(documents: Documents, tokenizer: Tokenizer, split: Any) -> TokenCache:
    suffix = "" if split == "train" else f"-{split}"
    return TokenizeDocuments(
        name=f"{documents.name}{suffix}",
        version=documents.version,
        documents=documents,
        tokenizer=tokenizer,
        split=split,
        validation_fraction=HELD_OUT,
    )


def _rounded(number: float, digits: int = 4) -> float:
    """The same digits on every machine: powers differ in their last bits."""
    return float(f"{number:.{digits}g}")
