"""Turns good and bad Documents into a classifier that scores any text between 0 and 1."""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from marin_dagster.data.documents import read_documents
from marin_dagster.kinds import Classifier, Documents
from marin_dagster.recipe import Context, Counts, Recipe, StageError, Summary

if TYPE_CHECKING:
    import numpy as np

MODEL_FILE = "model.bin"
REPORT_FILE = "report.json"
MAX_CHARACTERS = 20_000
_POSITIVE = "__label__positive"
_NEGATIVE = "__label__negative"
_HASH_RANGE = 1 << 32


@dataclass(frozen=True, kw_only=True)
class TrainClassifier(Classifier):
    """fastText over positive and negative documents; reports its quality on a held-out share.

    A text that is both positive and negative teaches nothing, and is dropped on both sides, as are
    repeated and empty texts. Which documents are held out depends on their text and `seed` only.
    """

    stage = "quality"

    positive: tuple[Documents, ...]
    negative: tuple[Documents, ...]
    dim: int = 64
    epochs: int = 5
    learning_rate: float = 0.3
    word_ngrams: int = 2
    bucket: int = 200_000  # hashed n-grams
    min_count: int = 2  # occurrences of a word that gets a vector of its own
    holdout_fraction: float = 0.2
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        for side in ("positive", "negative"):
            if not getattr(self, side):
                raise ValueError(f"{side}=() of {self.address} is empty; give at least 1 Documents")
        for name in ("dim", "epochs", "word_ngrams", "bucket", "min_count"):
            if getattr(self, name) < 1:
                value = getattr(self, name)
                raise ValueError(f"{name}={value} of {self.address} is below 1; raise it")
        if self.learning_rate <= 0:
            raise ValueError(f"learning_rate={self.learning_rate} is not above 0; try 0.3")
        if not 0 < self.holdout_fraction < 1:
            raise ValueError(f"holdout_fraction={self.holdout_fraction} is outside (0, 1); try 0.2")

    def build(self, ctx: Context) -> Summary:
        """Trains on the documents that are not held out, and writes the model and its report."""
        labelled, counts = _labelled_texts(ctx, self.positive, self.negative)
        held = [_is_held_out(text, self.seed, self.holdout_fraction) for text in labelled]
        train = [item for item, out in zip(labelled.items(), held, strict=True) if not out]
        holdout = [item for item, out in zip(labelled.items(), held, strict=True) if out]
        _refuse_one_sided(self, {"training": train, "held-out": holdout})
        _train(self, train, ctx)
        classifier = load_classifier(ctx.out)
        scores = classifier.scores([text for text, _ in holdout])
        labels = [positive for _, positive in holdout]
        report = {**_measure(scores, labels), "train": len(train), "holdout": len(holdout)}
        with open(os.path.join(ctx.out, REPORT_FILE), "w") as file:
            fields = {"recipe": self.payload, "normaliser": "lower, whitespace, first 20000"}
            json.dump({**report, **fields}, file, indent=1, sort_keys=True)
        return Summary(
            numbers=report,
            counts=counts,
            tables={"held out by source": _by_source(self, ctx, classifier)},
            plots={"held-out scores": _histogram(scores, labels)},
        )


@dataclass(frozen=True)
class QualityClassifier:
    """A loaded classifier. Scores depend on the text alone: not on batch, case or line breaks."""

    model: Any

    def scores(self, texts: Sequence[str]) -> "np.ndarray":
        """Probability of the positive label for each text, float64[len(texts)] in [0, 1]."""
        import numpy as np

        return np.array([self.score(text) for text in texts], dtype=np.float64)

    def score(self, text: str) -> float:
        """Probability of the positive label, in [0, 1]; 0 for an empty text."""
        line = normalise(text)
        if not line:
            return 0.0
        labels, values = self.model.predict(line, k=2)
        return min(1.0, max(0.0, float(dict(zip(labels, values, strict=True)).get(_POSITIVE, 0))))


def load_classifier(folder: str) -> QualityClassifier:
    """Loads a Classifier artifact; once per process and folder."""
    path = os.path.join(folder, MODEL_FILE)
    return _load(path, os.stat(path).st_mtime_ns)


def normalise(text: str) -> str:
    """The one line that the model sees, in training and in use."""
    line = " ".join(text[: 2 * MAX_CHARACTERS].lower().split())[:MAX_CHARACTERS]
    return line.encode("utf-8", "replace").decode().replace("\0", " ").strip()


@lru_cache(maxsize=4)
def _load(path: str, _modified: int) -> QualityClassifier:
    import fasttext

    return QualityClassifier(fasttext.load_model(path))


def _labelled_texts(
    ctx: Context, positive: tuple[Recipe, ...], negative: tuple[Recipe, ...]
) -> tuple[dict[str, bool], Counts]:
    """Normalised text: is it positive. First occurrences only, in the order of the inputs."""
    labelled: dict[str, bool] = {}
    conflicts: set[str] = set()
    read = repeated = empty = 0
    for recipes, label in ((positive, True), (negative, False)):
        for recipe in recipes:
            for document in read_documents(ctx.path(recipe)):
                read += 1
                line = normalise(document["text"])
                if not line:
                    empty += 1
                elif line not in labelled:
                    labelled[line] = label
                else:
                    repeated += 1
                    if labelled[line] != label:
                        conflicts.add(line)
    kept = {line: label for line, label in labelled.items() if line not in conflicts}
    dropped = {"empty": empty, "repeated": repeated, "both_labels": len(conflicts)}
    return kept, Counts(unit="documents", read=read, kept=len(kept), dropped=dropped)


def _is_held_out(text: str, seed: int, fraction: float) -> bool:
    import xxhash

    return xxhash.xxh3_64_intdigest(text.encode(), seed) % _HASH_RANGE < fraction * _HASH_RANGE


def _refuse_one_sided(recipe: Recipe, parts: dict[str, list[tuple[str, bool]]]) -> None:
    for name, items in parts.items():
        positive = sum(label for _, label in items)
        if not 0 < positive < len(items):
            raise StageError(
                "bad_input",
                f"{recipe.address}: the {name} part has {positive} positive and "
                f"{len(items) - positive} negative documents, and both must be above 0; "
                "give more documents, or change holdout_fraction",
            )


def _train(recipe: TrainClassifier, train: list[tuple[str, bool]], ctx: Context) -> None:
    """One thread: with more, two runs give different models."""
    import fasttext

    path = os.path.join(ctx.work, "train.txt")
    ordered = sorted(train, key=lambda item: _order(item[0], recipe.seed))
    with open(path, "w", encoding="utf-8") as file:
        for line, positive in ordered:
            file.write(f"{_POSITIVE if positive else _NEGATIVE} {line}\n")
    model = fasttext.train_supervised(
        input=path,
        dim=recipe.dim,
        epoch=recipe.epochs,
        lr=recipe.learning_rate,
        wordNgrams=recipe.word_ngrams,
        bucket=recipe.bucket,
        minCount=recipe.min_count,
        seed=recipe.seed,
        thread=1,
        verbose=0,
    )
    model.save_model(os.path.join(ctx.out, MODEL_FILE))
    os.remove(path)


def _order(text: str, seed: int) -> int:
    """A fixed shuffle; labels in blocks would teach the model the last block."""
    import xxhash

    return xxhash.xxh3_64_intdigest(text.encode(), seed + 1)


def _measure(scores: "np.ndarray", labels: Sequence[bool]) -> dict[str, float]:
    """Precision, recall and accuracy at 0.5, and the area under the ROC curve."""
    import numpy as np

    positive = np.array(labels)
    predicted = scores >= 0.5
    hits = int((predicted & positive).sum())
    return {
        "precision": round(hits / max(1, int(predicted.sum())), 6),
        "recall": round(hits / int(positive.sum()), 6),
        "accuracy": round(float((predicted == positive).mean()), 6),
        "auc": round(_auc(scores, positive), 6),
    }


def _auc(scores: "np.ndarray", positive: "np.ndarray") -> float:
    """Probability that a positive scores above a negative; ties count one half (Mann-Whitney)."""
    import numpy as np

    negatives = np.sort(scores[~positive])
    below = np.searchsorted(negatives, scores[positive], side="left")
    not_above = np.searchsorted(negatives, scores[positive], side="right")
    return float((below + not_above).mean() / 2 / len(negatives))


def _by_source(
    recipe: TrainClassifier, ctx: Context, classifier: QualityClassifier
) -> list[dict[str, Any]]:
    """Mean held-out score of each input, to see a source that the classifier misjudges."""
    rows = []
    for side in ("positive", "negative"):
        for source in getattr(recipe, side):
            texts = (normalise(document["text"]) for document in read_documents(ctx.path(source)))
            held = {t for t in texts if _is_held_out(t, recipe.seed, recipe.holdout_fraction)}
            mean = float(classifier.scores(sorted(held)).mean()) if held else float("nan")
            rows.append({"label": side, "input": source.address, "documents": len(held)})
            rows[-1]["mean score"] = round(mean, 4) if held else None
    return rows


def _histogram(scores: "np.ndarray", labels: Sequence[bool], num_bins: int = 20) -> str:
    """How many held-out documents of each label have which score, as SVG."""
    import numpy as np

    from marin_dagster.plots import line_chart

    positive = np.array(labels)
    counts = {}
    for name, chosen in (("positive", positive), ("negative", ~positive)):
        heights, edges = np.histogram(scores[chosen], bins=num_bins, range=(0, 1))
        counts[name] = ((edges[:-1] + edges[1:]) / 2, heights)
    return line_chart(counts, "Held-out scores", "score", "documents")
