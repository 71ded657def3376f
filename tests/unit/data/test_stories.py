"""Small stories: facts that hold, items that can be answered, chats that are short."""

import itertools
import re
from collections import Counter

import pytest

from marin_dagster.data import story_grammar as grammar
from marin_dagster.data.stories import HELD_OUT, NUM_CHOICES, cloze, question, story

MANY = range(150)


def test_the_same_seed_and_index_give_the_same_story():
    assert story(3, 7) == story(3, 7)
    assert story(3, 7).text != story(3, 8).text
    assert story(3, 7).text != story(4, 7).text


def test_no_slot_or_choice_is_left_open():
    for index in MANY:
        one = story(0, index)
        assert not set("{}[]|") & set(one.title + one.text)
        assert "//" not in one.text
        assert re.search(r"\b[Aa] [aeiou]", one.text) is None
        assert re.search(r"(^|\. )[a-z]", one.text) is None


def test_the_toy_of_a_story_stays_the_same_to_the_end():
    for index in MANY:
        one = story(0, index)
        toys = set(re.findall(rf"({'|'.join(grammar.COLOURS)}) (\w+)", one.text))
        toys = {(colour, noun) for colour, noun in toys if noun in grammar.OBJECTS}
        assert toys == {(one.facts["colour"], one.facts["object"])}


def test_an_animal_makes_only_its_own_sound():
    sounds = {animal: entry[0] for animal, entry in grammar.ANIMALS.items()}
    for index in MANY:
        one = story(0, index)
        heard = {sound for sound in sounds.values() if f'"{sound}' in one.text}
        assert heard <= {sounds[one.facts["animal"]]}


def test_stories_are_varied():
    texts = [story(0, index).text for index in MANY]
    assert len(set(texts)) == len(texts)
    openings = Counter(text.split(". ")[0] for text in texts)
    assert openings.most_common(1)[0][1] < len(texts) // 20


def test_every_plot_can_be_told_in_every_wording():
    for template in (grammar.OPENINGS, grammar.SCENES, grammar.ENDINGS, *grammar.PLOTS.values()):
        assert template.count("[") == template.count("]")
    assert grammar.PLOTS.keys() == grammar.MORALS.keys()


@pytest.mark.parametrize("kind", ["object", "sound", "home", "food", "garment", "hero"])
def test_the_right_choice_of_an_item_is_what_the_story_says(kind: str):
    found = 0
    for index in MANY:
        one = story(0, HELD_OUT + index)
        for item in cloze(one):
            if item["kind"] != kind:
                continue
            found += 1
            right = item["choices"][item["label"]]
            assert one.text.startswith(f"{item['context']} {right}") or one.text.startswith(
                f"{item['context']}\n\n{right}"
            )
            assert len(set(item["choices"])) == NUM_CHOICES
    assert found > 25


def test_the_right_choice_is_at_every_place_about_as_often():
    items = [item for index in MANY for item in cloze(story(0, index))]
    places = Counter(item["label"] for item in items)
    assert min(places.values()) > 0.8 * len(items) / NUM_CHOICES


def test_every_story_has_an_item():
    assert all(cloze(story(0, HELD_OUT + index)) for index in MANY)


def test_chats_are_short_and_end_with_the_assistant():
    for index, number in itertools.product(range(100), range(3)):
        turns = question(story(0, index), number)
        assert [turn["role"] for turn in turns][-2:] == ["user", "assistant"]
        assert len(turns[-1]["content"].split()) < 30
        assert len(turns[-2]["content"].split()) < 120


def test_an_answer_about_a_story_can_be_read_from_the_story_asked_about():
    for index in MANY:
        one = story(0, index)
        turns = question(one)
        if one.paragraphs[0] not in turns[-2]["content"]:
            continue
        named = re.findall(r"\w+", turns[-1]["content"].lower())
        facts = {str(value) for value in one.facts.values()}
        said = [word for word in named if word in facts]
        assert all(word in turns[-2]["content"].lower() for word in said)
