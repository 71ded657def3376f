"""Turns a text into a reason to drop it: heuristic rules with their thresholds as fields."""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

Judgement = tuple[str, str | None]  # the text, perhaps shortened, and the reason to drop it


@dataclass(frozen=True, kw_only=True)
class RuleConfig(ABC):
    """One rule. Add a rule by subclassing it here or anywhere: a frozen dataclass and `judge`."""

    @abstractmethod
    def judge(self, text: str) -> Judgement:
        """The text to go on with, and the reason to drop it, or None to keep it."""


@dataclass(frozen=True, kw_only=True)
class MinWords(RuleConfig):
    """Drops texts with few words."""

    words: int

    def judge(self, text: str) -> Judgement:
        return text, "too_few_words" if len(text.split(None, self.words)) < self.words else None


@dataclass(frozen=True, kw_only=True)
class MaxCharacters(RuleConfig):
    """Drops texts with many characters."""

    characters: int

    def judge(self, text: str) -> Judgement:
        return text, "too_long" if len(text) > self.characters else None


@dataclass(frozen=True, kw_only=True)
class GopherQuality(RuleConfig):
    """Quality rules of Gopher (https://arxiv.org/abs/2112.11446, table A1).

    `min_alpha_words_ratio`: share of words that must hold a letter.
    """

    min_words: int = 50
    max_words: int = 100_000
    min_average_word_length: float = 3
    max_average_word_length: float = 10
    max_symbol_word_ratio: float = 0.1
    max_bullet_lines_ratio: float = 0.9
    max_ellipsis_lines_ratio: float = 0.3
    min_alpha_words_ratio: float = 0.8
    min_stop_words: int = 2

    def judge(self, text: str) -> Judgement:
        return _apply(self, text)


@dataclass(frozen=True, kw_only=True)
class GopherRepetition(RuleConfig):
    """Repetition rules of Gopher (https://arxiv.org/abs/2112.11446, table A1), as shares."""

    duplicate_lines: float = 0.3
    duplicate_paragraphs: float = 0.3
    duplicate_line_characters: float = 0.2
    duplicate_paragraph_characters: float = 0.2
    top_ngrams: tuple[tuple[int, float], ...] = ((2, 0.2), (3, 0.18), (4, 0.16))
    duplicate_ngrams: tuple[tuple[int, float], ...] = (
        (5, 0.15),
        (6, 0.14),
        (7, 0.13),
        (8, 0.12),
        (9, 0.11),
        (10, 0.10),
    )

    def judge(self, text: str) -> Judgement:
        return _apply(self, text)


@dataclass(frozen=True, kw_only=True)
class C4Quality(RuleConfig):
    """Rules of C4 (https://jmlr.org/papers/v21/20-074.html); removes lines, not only documents."""

    min_sentences: int = 5
    min_words_per_line: int = 3
    max_word_length: int = 1000
    remove_lines_without_terminal_punctuation: bool = True
    drop_curly_brackets: bool = True

    def judge(self, text: str) -> Judgement:
        return _apply(self, text)


@dataclass(frozen=True, kw_only=True)
class FineWebQuality(RuleConfig):
    """Rules of FineWeb (https://arxiv.org/abs/2406.17557, section 3.6), as shares."""

    min_punctuated_lines: float = 0.12
    max_short_lines: float = 0.67
    short_line_length: int = 30
    max_duplicate_characters: float = 0.01
    max_newlines_per_word: float = 0.3

    def judge(self, text: str) -> Judgement:
        return _apply(self, text)


def _apply(rule: RuleConfig, text: str) -> Judgement:
    """Judges with the datatrove filter that the rule stands for."""
    from datatrove.data import Document

    if not text.strip():
        return text, "empty"
    document = Document(text=text, id="")
    result = _filter(rule).filter(document)
    kept, reason = result if isinstance(result, tuple) else (result, type(rule).__name__)
    return document.text, None if kept else reason


@lru_cache(maxsize=64)
def _filter(rule: RuleConfig) -> Any:
    make: dict[type, Callable[[Any], Any]] = {
        GopherQuality: _gopher_quality,
        GopherRepetition: _gopher_repetition,
        C4Quality: _c4_quality,
        FineWebQuality: _fineweb_quality,
    }
    return make[type(rule)](rule)


def _gopher_quality(rule: GopherQuality) -> Any:
    from datatrove.pipeline.filters import GopherQualityFilter

    return GopherQualityFilter(
        min_doc_words=rule.min_words,
        max_doc_words=rule.max_words,
        min_avg_word_length=rule.min_average_word_length,  # pyright: ignore[reportArgumentType]
        max_avg_word_length=rule.max_average_word_length,  # pyright: ignore[reportArgumentType]
        max_symbol_word_ratio=rule.max_symbol_word_ratio,
        max_bullet_lines_ratio=rule.max_bullet_lines_ratio,
        max_ellipsis_lines_ratio=rule.max_ellipsis_lines_ratio,
        max_non_alpha_words_ratio=rule.min_alpha_words_ratio,
        min_stop_words=rule.min_stop_words,
        language=_tokenizer(),
    )


def _gopher_repetition(rule: GopherRepetition) -> Any:
    from datatrove.pipeline.filters import GopherRepetitionFilter

    return GopherRepetitionFilter(
        dup_line_frac=rule.duplicate_lines,
        dup_para_frac=rule.duplicate_paragraphs,
        dup_line_char_frac=rule.duplicate_line_characters,
        dup_para_char_frac=rule.duplicate_paragraph_characters,
        top_n_grams=rule.top_ngrams,  # pyright: ignore[reportArgumentType]
        dup_n_grams=rule.duplicate_ngrams,  # pyright: ignore[reportArgumentType]
        language=_tokenizer(),
    )


def _c4_quality(rule: C4Quality) -> Any:
    from datatrove.pipeline.filters import C4QualityFilter

    return C4QualityFilter(
        min_num_sentences=rule.min_sentences,
        min_words_per_line=rule.min_words_per_line,
        max_word_length=rule.max_word_length,
        filter_no_terminal_punct=rule.remove_lines_without_terminal_punctuation,
        filter_curly_bracket=rule.drop_curly_brackets,
        language=_tokenizer(),
    )


def _fineweb_quality(rule: FineWebQuality) -> Any:
    from datatrove.pipeline.filters import FineWebQualityFilter

    return FineWebQualityFilter(
        line_punct_thr=rule.min_punctuated_lines,
        short_line_thr=rule.max_short_lines,
        short_line_length=rule.short_line_length,
        char_duplicates_ratio=rule.max_duplicate_characters,
        new_line_ratio=rule.max_newlines_per_word,
        language=_tokenizer(),
    )


@lru_cache(maxsize=1)
def _tokenizer() -> Any:
    """A word tokenizer without language data, many times faster than the linguistic default."""
    from datatrove.utils.word_tokenizers import WordTokenizer

    word = re.compile(r"\w+(?:['’.]\w+)*|[^\w\s]+")
    sentence = re.compile(
        r"\S[^\n]*?(?:[.!?]+[\"'”’)\]]*(?=\s|$)|[。！？]+|$)",
        re.MULTILINE,
    )

    class RegexTokenizer(WordTokenizer):
        def word_tokenize(self, text: str) -> list[str]:
            return word.findall(text)

        def sent_tokenize(self, text: str) -> list[str]:
            return sentence.findall(text)

        def span_tokenize(self, text: str) -> list[tuple[int, int]]:
            return [found.span() for found in sentence.finditer(text)]

    return RegexTokenizer()
