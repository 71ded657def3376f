"""Turns a text into the code of its language."""

from functools import cache
from typing import Any

_CHARACTERS = 2_000  # of the beginning; more does not change the answer for a text in one language
_MIN_CONFIDENCE = 0.5
_NO_LANGUAGE = ("und", "zxx")  # unsure; numbers and signs


def language_of(text: str) -> str:
    """The ISO 639 code of the language that the text begins in, "" when it is not clear."""
    code, _ = _identifier().classify(text[:_CHARACTERS])
    return "" if code in _NO_LANGUAGE else code


@cache
def _identifier() -> Any:
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_model_file(
        MODEL_FILE, norm_probs=True, min_confidence=_MIN_CONFIDENCE
    )
