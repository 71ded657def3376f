"""Turns a tokenizer into a verdict: every odd string must come back byte for byte."""

from collections.abc import Iterable
from typing import Any

from marin_dagster.data.tokenizer import CONTROL_PIECES, SPACE_MARK, TextTokenizer, table_row
from marin_dagster.recipe import StageError

SHOWN_FAILURES = 10
EXAMPLES = (
    "The quick brown fox jumps over the lazy dog.",
    "    def f(x):\n        return x + 12345",
    "naïve café, Ελληνικά, 日本語のテキスト",
    "2026-11-30T12:34:56Z costs $1,234.50",
    "text that spells </s> and <|end|>",
    "👩\u200d👩\u200d👧 and 🏳\ufe0f\u200d🌈",
)
_ODD = (
    *("", " ", "  ", "\t", "\n", "\r\n", "\r", "\0", "a\0b", "\x01\x02\x1b[0m", "\x7f", "\x85"),
    *(
        " leading",
        "  two",
        "trailing ",
        " !",
        "a , b",
        "tab\tbed",
        "\tindent",
        "a\r\nb",
        "a\n\n\nb",
    ),
    *("e\u0301", "\u0301", "\u1100\u1161\u11a8", "ﬁ ligature", "①②③", "ＡＢＣ", "İstanbul", "ß ẞ"),
    *(
        "中文字符",
        "日本語 かな カナ",
        "한국어",
        "ไทย",
        "हिन्दी",
        "العربية",
        "עברית",
        "\u202eabc\u202c",
    ),
    *("👩\u200d👩\u200d👧\u200d👦", "🏳\ufe0f\u200d🌈", "👍🏽", "🇫🇷🇩🇪", "\U0001f9ff", "\U0010ffff"),
    *(
        "\ufeffbom",
        "a\u00a0b",
        "\u2003em",
        "\u200bzero",
        "\u3000wide",
        "soft\u00adhyphen",
        "\u2028",
    ),
    *("\ufffd", "\ufffe", "\ue000", "𝔘𝔫𝔦", "x²", "½", "∑∫√", "→←", "—–‐", "“quotes”", "…"),
    *("0123456789", "1e-10", "3.14159", "٣٤٥", "Ⅷ", "1,000,000"),
    *("<0x0A>", "<0xE2><0x96><0x81>", "<unk>x", "{{ bos_token }}", "\\n", "&lt;", "<b>&amp;</b>"),
    *(
        "https://example.org/a?b=c&d=%20#e",
        "user@example.org",
        "C:\\Users\\x",
        "$PATH",
        "#!/bin/sh",
    ),
    *("if (a&&b) {\n\t\treturn;\n}", "x = [1,  2,\t3]", "        eight", "-" * 200, " " * 300),
    *("a" * 1000, "ab" * 500, "aa aaa aaaa aaaaa", "\n" * 50, "\t" * 20, "日" * 100, "é" * 100),
)


def odd_strings(control: Iterable[str] = CONTROL_PIECES) -> list[str]:
    """About two hundred strings that tokenizers are known to damage; some spell control pieces."""
    marks = [SPACE_MARK, f"a{SPACE_MARK}b", f"{SPACE_MARK} {SPACE_MARK}", f" {SPACE_MARK}" * 3]
    spelled = [form.format(piece) for piece in control for form in ("{}", " {} x", "a{}")]
    pairs = [left + right for left in (" ", "é", "\n", "9") for right in _ODD[12:32]]
    return [*_ODD, *marks, *spelled, *pairs]


def check_round_trip(tokenizer: TextTokenizer) -> int:
    """Returns how many strings passed; raises StageError that lists those that did not."""
    strings = odd_strings(tokenizer.control)
    failures = [text for text in strings if not _survives(text, tokenizer)]
    if failures:
        shown = "; ".join(
            f"{text[:40]!r} -> {tokenizer.decode(tokenizer.encode(text))[:40]!r}"
            for text in failures[:SHOWN_FAILURES]
        )
        raise StageError(
            "bad_input",
            f"{len(failures)} of {len(strings)} strings do not survive encoding and decoding "
            f"({shown}); the tokenizer would damage text, or let it forge control tokens: take one "
            "of bytes that normalizes nothing",
        )
    return len(strings)


def example_splits(tokenizer: TextTokenizer) -> list[dict[str, Any]]:
    """How the tokenizer splits a few telling strings."""
    return [table_row(text, tokenizer) for text in EXAMPLES]


def _survives(text: str, tokenizer: TextTokenizer) -> bool:
    ids = tokenizer.encode(text)
    return tokenizer.decode(ids) == text and not any(map(tokenizer.is_control, ids))
