"""Turns (seed, index) into a small story, chats about it and multiple-choice questions on it.

Stories come from the grammar in `story_grammar`. Facts hold through a story: the toy at the end is
the toy of the beginning, and an animal always makes its own sound. Indices from `HELD_OUT` on are
for evaluation; a site shows only lower ones, except those that it leaks on purpose.
"""

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import TypedDict

from marin_dagster.data import story_grammar as grammar

HELD_OUT = 1_000_000  # first index of the stories kept for evaluation
CHATS = 2_000_000  # first index of the stories that only chats are about
NUM_CHOICES = 4

_CHOICE = re.compile(r"\[([^\[\]]*)\]")
_AFTER_STOP = re.compile(r"(?:^|[.!?] |\n)([a-z])")
_PRONOUNS = {"girl": ("she", "her", "her"), "boy": ("he", "him", "his")}
_NUMBERS = ("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "twelve")
_WOMEN = ("mum", "grandma", "aunt")


class Turn(TypedDict):
    """One message of a chat."""

    role: str
    content: str


class Cloze(TypedDict):
    """A text to go on with, ways to go on, and the number of the right one."""

    kind: str
    context: str
    choices: list[str]
    label: int


@dataclass(frozen=True, kw_only=True)
class Story:
    """A small story; `facts` has hero, friend, adult, animal, sound, home, food, object, colour…"""

    seed: int
    index: int
    title: str
    paragraphs: tuple[str, ...]
    facts: Mapping[str, str]

    @property
    def text(self) -> str:
        return "\n\n".join(self.paragraphs)


def story(seed: int, index: int) -> Story:
    """Returns the story with this number; the same arguments give the same story."""
    rng = random.Random(f"story/{seed}/{index}")
    facts = _facts(rng)
    plot = facts["plot"]
    slots = _slots(facts, rng)
    moral = " ".join(_expand(grammar.MORALS[plot], slots, rng))
    slots["moral"] = moral
    opening = _expand(grammar.OPENINGS, slots, rng) + _expand(grammar.SCENES, slots, rng)
    body = _expand(grammar.PLOTS[plot], slots, rng)
    ending = _expand(grammar.ENDINGS, slots, rng)
    paragraphs = (*opening, *body[:-1], f"{body[-1]} {ending[0]}")
    title = rng.choice(_TITLES).format_map(slots)
    return Story(seed=seed, index=index, title=_capitals(title), paragraphs=paragraphs, facts=facts)


_TITLES = (
    "{hero} and the {colour} {object}",
    "The {colour} {object}",
    "{hero} and the {animal}",
    "How {hero} went to the {place}",
    "{hero}, {friend} and the {animal}",
    "A day {in_place}",
)


def _facts(rng: random.Random) -> dict[str, str]:
    sex = rng.choice(("girl", "boy"))
    girls, boys = rng.sample(grammar.GIRLS, 2), rng.sample(grammar.BOYS, 2)
    hero = girls[0] if sex == "girl" else boys[0]
    friend = rng.choice((girls[1], boys[1]))
    animal = rng.choice(tuple(grammar.ANIMALS))
    sound, home, food = grammar.ANIMALS[animal]
    return {
        "plot": rng.choice(tuple(grammar.PLOTS)),
        "hero": hero,
        "sex": sex,
        "friend": friend,
        "adult": rng.choice(grammar.ADULTS),
        "trait": rng.choice(grammar.TRAITS),
        "animal": animal,
        "sound": sound,
        "home": home,
        "food": food,
        "object": rng.choice(tuple(grammar.OBJECTS)),
        "colour": rng.choice(grammar.COLOURS),
        "place": rng.choice(tuple(grammar.PLACES)),
        "weather": rng.choice(tuple(grammar.WEATHER)),
    }


def _slots(facts: Mapping[str, str], rng: random.Random) -> dict[str, str]:
    he, him, his = _PRONOUNS[facts["sex"]]
    use, used = grammar.OBJECTS[facts["object"]]
    in_place, feature = grammar.PLACES[facts["place"]]
    how_long, garment = grammar.WEATHER[facts["weather"]]
    adjectives = [word for word in grammar.ADJECTIVES if word != facts["trait"]]
    adjective1, adjective2 = rng.sample(adjectives, 2)
    thing1, thing2 = rng.sample(grammar.THINGS, 2)
    return {
        **facts,
        **{"he": he, "him": him, "his": his, "He": he.title(), "His": his.title()},
        **{"use": use, "used": used, "in_place": in_place, "feature": feature},
        **{"how_long": how_long, "garment": garment, "dish": rng.choice(grammar.DISHES)},
        **{"adjective1": adjective1, "adjective2": adjective2},
        **{"thing1": thing1, "thing2": thing2, "things1": _plural(thing1)},
        **{"number": rng.choice(_NUMBERS), "taste": rng.choice(grammar.TASTES)},
        "a_adjective1": _with_article(adjective1),
        "a_adjective2": _with_article(adjective2),
        "a_animal": _with_article(facts["animal"]),
        "adult_he": "she" if facts["adult"] in _WOMEN else "he",
        "time": rng.choice(grammar.TIMES),
    }


def _expand(template: str, slots: Mapping[str, str], rng: random.Random) -> list[str]:
    """Returns the paragraphs of a template: one wording of each sentence, slots filled."""
    paragraphs = []
    for block in _parse(template):
        wordings = (rng.choice(variants) for variants in block)
        chosen = (
            _CHOICE.sub(lambda match: rng.choice(match[1].split("|")), wording)
            for wording in wordings
        )
        paragraphs.append(_capitals(" ".join(chosen).format_map(slots)))
    return paragraphs


@cache
def _parse(template: str) -> tuple[tuple[tuple[str, ...], ...], ...]:
    """Template text as paragraphs of sentences of variants."""
    return tuple(
        tuple(tuple(sentence.split("\n// ")) for sentence in re.split(r"\n(?!// )", block))
        for block in template.strip().split("\n\n")
    )


def _capitals(text: str) -> str:
    text = _AFTER_STOP.sub(lambda match: match[0][:-1] + match[1].upper(), text)
    return re.sub(r"\b([Aa]) (?=[aeiou])", r"\1n ", text)


def _with_article(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def _plural(noun: str) -> str:
    if noun == "goose":
        return "geese"
    if noun.endswith("man"):
        return f"{noun[:-3]}men"
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return f"{noun[:-1]}ies"
    return f"{noun}es" if noun.endswith(("s", "sh", "ch", "x")) else f"{noun}s"


# ---- chats


def question(about: Story, number: int = 0) -> list[Turn]:
    """Returns a chat of one question with a short answer on the story, its facts or its style."""
    rng = random.Random(f"chat/{about.seed}/{about.index}/{number}")
    make = rng.choice((_reading, _reading, _reading, _knowledge, _telling))
    asked, answer = make(about, rng)
    turns: list[Turn] = [
        {"role": "user", "content": asked},
        {"role": "assistant", "content": _capitals(answer)},
    ]
    if rng.random() < 0.2:
        turns.insert(0, {"role": "system", "content": rng.choice(_SYSTEMS)})
    return turns


_SYSTEMS = (
    "You are a friendly storyteller.",
    "Answer in one or two short sentences.",
    "You help children to read stories.",
)


def _reading(about: Story, rng: random.Random) -> tuple[str, str]:
    facts = about.facts
    hero, toy = facts["hero"], f"{facts['colour']} {facts['object']}"
    asked, answer = rng.choice(
        (
            ("Who is the story about?", f"The story is about {hero}."),
            (f"What did {hero} have?", f"{hero} had a {toy}."),
            (
                f"What colour was the {facts['object']}?",
                f"The {facts['object']} was {facts['colour']}.",
            ),
            (f"What was {hero}'s favourite colour?", f"{hero} liked {facts['colour']} best."),
            (f"Who gave {hero} the {facts['object']}?", f"It came from {hero}'s {facts['adult']}."),
            (
                "Which animal is in the story?",
                f"There is {_with_article(facts['animal'])} in the story.",
            ),
        )
    )
    text = about.paragraphs[0]
    if facts["animal"] not in text or facts["adult"] not in text:
        asked, answer = "Who is the story about?", f"The story is about {hero}."
    lead = rng.choice(("Read this story.", "Here is a story.", "Listen to this story."))
    return f"{lead}\n\n{text}\n\n{asked}", answer


def _knowledge(about: Story, rng: random.Random) -> tuple[str, str]:
    animal = about.facts["animal"]
    sound, home, food = grammar.ANIMALS[animal]
    one = _with_article(animal)
    return rng.choice(
        (
            (f"What does {one} say?", f'{one} says, "{sound}!"'),
            (f"Which sound does {one} make?", f'{one} says, "{sound}!"'),
            (f"Where does {one} live?", f"{one} lives in {_with_article(home)}."),
            (f"What does {one} eat?", f"{one} likes to eat {food}."),
            (f'Which animal says, "{sound}!"?', f'{one} says, "{sound}!"'),
        )
    )


def _telling(about: Story, rng: random.Random) -> tuple[str, str]:
    facts = about.facts
    he, _, his = _PRONOUNS[facts["sex"]]
    use, used = grammar.OBJECTS[facts["object"]]
    in_place = grammar.PLACES[facts["place"]][0]
    toy = f"{facts['colour']} {facts['object']}"
    asked = rng.choice(
        (f"Tell me a story about a {toy}.", f"Please tell me a short story about a {toy}.")
    )
    hero = facts["hero"]
    answer = rng.choice(
        (
            f"{hero} had a {toy}. {he} {used} it {in_place} with {his} {facts['animal']}.",
            f"Once there was a {facts['sex']} called {hero} who loved to {use} a {toy}.",
            f"{hero} lost a {toy} {in_place}. The {facts['animal']} found it, and {he} was happy.",
        )
    )
    return _capitals(asked), answer


# ---- multiple choice


def cloze(about: Story) -> list[Cloze]:
    """Returns multiple-choice items on the story: toy, sound, home, food, garment, hero.

    The context is the story up to the place in question; what is asked for was said before, or is
    a fact of the grammar (what a dog says, what one wears in the rain).
    """
    facts = about.facts
    rng = random.Random(f"cloze/{about.seed}/{about.index}")
    toy = f"{facts['colour']} {facts['object']}"
    sounds = [f'"{sound}' for sound, _, _ in grammar.ANIMALS.values()]
    homes = [home for _, home, _ in grammar.ANIMALS.values()]
    foods = [food for _, _, food in grammar.ANIMALS.values()]
    garments = [garment for _, garment in grammar.WEATHER.values()]
    garment = grammar.WEATHER[facts["weather"]][1]
    names = grammar.GIRLS if facts["sex"] == "girl" else grammar.BOYS
    asked = [
        ("object", toy, _other_toys(facts, rng), about.text.rfind(f" {toy}")),
        ("sound", f'"{facts["sound"]}', sounds, about.text.find(f' "{facts["sound"]}')),
        ("home", facts["home"], homes, about.text.rfind(f" {facts['home']}")),
        ("food", facts["food"], foods, about.text.rfind(f" {facts['food']}")),
        ("garment", garment, garments, about.text.find(f" {garment}")),
        ("hero", facts["hero"], list(names), about.text.rfind(f" {facts['hero']}")),
    ]
    items = []
    for kind, right, others, at in asked:
        context = about.text[:at].rstrip() if at > 0 else ""
        if len(context.split()) < 20 or not _is_answerable(kind, right, context, facts):
            continue
        wrong = rng.sample(sorted({other for other in others if other != right}), NUM_CHOICES - 1)
        choices = [right, *wrong]
        rng.shuffle(choices)
        items.append(Cloze(kind=kind, context=context, choices=choices, label=choices.index(right)))
    return items


def _is_answerable(kind: str, right: str, context: str, facts: Mapping[str, str]) -> bool:
    known = right
    if kind == "garment":
        known = facts["weather"]
    elif kind in ("sound", "home", "food"):
        known = facts["animal"]
    return re.search(rf"\b{re.escape(known)}\b", context) is not None


def _other_toys(facts: Mapping[str, str], rng: random.Random) -> list[str]:
    colours = [colour for colour in grammar.COLOURS if colour != facts["colour"]]
    toys = [toy for toy in grammar.OBJECTS if toy != facts["object"]]
    return [
        f"{rng.choice(colours)} {facts['object']}",
        f"{facts['colour']} {rng.choice(toys)}",
        f"{rng.choice(colours)} {rng.choice(toys)}",
    ]
