"""Turns a text into the code of its language."""

_COMMON_WORDS = {
    "en": "the and of to in is was that it for with he she his her they are this on at not",
    "de": "der die das und ist nicht ein eine mit den von zu im auf für sich dem des auch aber",
    "fr": "le la les et est un une des dans pour que qui sur pas avec il elle au du mais",
    "es": "el la los las y es un una en que de por con para no se del su como pero",
    "it": "il la le e è un una di che in per con non si del della sono come ma gli",
    "nl": "de het een en van is dat niet met op te voor zijn aan er ook maar als bij naar",
    "pt": "o a os as e é um uma de que em para com não se do da por como mas",
}
_WORDS = {language: frozenset(words.split()) for language, words in _COMMON_WORDS.items()}


def guess_language(text: str) -> str:
    """Returns the language whose common words are most frequent, "" when none is."""
    words = text[:5000].lower().split()
    if len(words) < 5:
        return ""
    shares = {
        language: sum(word.strip(".,;:!?\"'()") in common for word in words) / len(words)
        for language, common in _WORDS.items()
    }
    best = max(shares, key=lambda language: shares[language])
    return best if shares[best] >= 0.08 else ""
