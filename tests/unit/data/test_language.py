"""The language of a text."""

import pytest

from marin_dagster.data.language import guess_language

PROSE = (
    "The old bridge over the river was built by three brothers who wanted to see the sea. "
    "Every spring the water rose, and every spring the people of the village came to look at it. "
)


@pytest.mark.parametrize(
    ("text", "language"),
    [
        (PROSE, "en"),
        ("La vieille dame est dans la forêt et elle ne chante pas avec les enfants.", "fr"),
        ("El perro está en la plaza con los niños y no come una manzana.", "es"),
        ("Der Hund ist nicht im Haus, und die Katze sitzt auf dem Dach.", "de"),
        ("昔々あるところにおじいさんがいました", ""),
        ("xyzzy plugh foo bar baz qux quux corge", ""),
    ],
)
def test_the_language_is_told_by_its_common_words(text: str, language: str):
    assert guess_language(text) == language
