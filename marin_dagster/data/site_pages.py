"""Turns numbers into the HTML of a made-up website: stories, lists, spam, notes."""

import html
import random
from collections.abc import Sequence

from marin_dagster.data.stories import Story

_ADVERTS = (
    "Sponsored: Comfy slippers, now 30% off. Order today!",
    "Advert: Learn the piano in ten easy lessons with PianoPal.",
    "Try Brightmilk, the milk with a smile. Buy two, get one free.",
    "Your advert here? Write to ads@example.test for our price list.",
)
_MENU = (("/", "Home"), ("/chapters/0", "All stories"), ("/about", "About"), ("/notes/0", "Notes"))
_STYLE = "body{font-family:serif;max-width:60em;margin:auto}nav a{margin-right:1em}.ad{color:#999}"
_TRACKER = "window.visits=(window.visits||0)+1;document.cookie='seen=1;path=/';"


def layout(host: str, title: str, main: str, rng: random.Random) -> str:
    """Returns a whole page: menu, cookie banner, main part, sidebar with adverts, footer."""
    menu = "".join(f'<a href="{path}">{label}</a> ' for path, label in _MENU)
    hosts = html.escape(host)
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)} - {hosts}</title>
<style>{_STYLE}</style><script>{_TRACKER}</script></head><body>
<header><div class="logo">{hosts}</div><nav>{menu}</nav></header>
<div id="cookie-banner" class="cookie-consent" role="dialog"><p>We use cookies to make this site
better. By reading on you accept our cookie policy.</p><button>Accept all</button></div>
<main><article>{main}</article></main>
<aside class="sidebar"><h3>Popular now</h3><ul><li><a href="/stories/{rng.randrange(9)}">Most
read story</a></li><li><a href="/chapters/0">Browse the list</a></li></ul>
<div class="ad advertisement">{html.escape(rng.choice(_ADVERTS))}</div></aside>
<footer class="footer"><p>Copyright {hosts}. All rights reserved. <a href="/about">About us</a> |
<a href="/private/account">My account</a></p><p>Follow us! Share this page!</p></footer>
</body></html>
"""


def story_page(host: str, number: int, told: Sequence[Story], rng: random.Random) -> str:
    """Returns a page with several stories and links to its neighbours."""
    parts = [
        f"<section><h{level}>{html.escape(one.title)}</h{level}>{_paragraphs(one)}</section>"
        for level, one in zip((1, *[2] * len(told)), told, strict=False)
    ]
    links = "".join(
        f'<a rel="{rel}" href="/stories/{other}">{label}</a> '
        for rel, other, label in (("prev", number - 1, "Previous"), ("next", number + 1, "Next"))
        if other >= 0
    )
    main = f"{''.join(parts)}<p class='pager'>{links}</p>"
    return layout(host, told[0].title, main, rng)


def print_page(told: Sequence[Story], rng: random.Random) -> str:
    """Returns the same stories in a bare layout with a few words changed: a near-duplicate."""
    parts = []
    for one in told:
        words = one.text.split(" ")
        words[rng.randrange(len(words))] = "quite"
        text = "</p><p>".join(html.escape(part) for part in " ".join(words).split("\n\n"))
        parts.append(f"<h2>{html.escape(one.title)}</h2><p>{text}</p>")
    body = "".join(parts)
    return (
        f"<!DOCTYPE html><html><head><meta charset='utf-8'><title>Print: {told[0].title}</title>"
        f"</head><body><div class='content'>{body}</div></body></html>"
    )


def list_page(host: str, title: str, links: Sequence[tuple[str, str]], rng: random.Random) -> str:
    """Returns a page that is little more than links."""
    items = "".join(f'<li><a href="{path}">{html.escape(label)}</a></li>' for path, label in links)
    return layout(host, title, f"<h1>{html.escape(title)}</h1><ul>{items}</ul>", rng)


_SPAM = tuple(
    word
    for line in (
        "casino bonus free spins jackpot slots poker blackjack win cash now best odds no deposit",
        "online betting lucky roulette cheap pills loan credit instant payout click here vip offer",
    )
    for word in line.split()
)


def spam_lines(rng: random.Random) -> list[str]:
    """Returns lines stuffed with the keywords of casinos and cheap loans."""
    lines = []
    for _ in range(rng.randrange(8, 16)):
        words = " ".join(rng.choice(_SPAM) for _ in range(rng.randrange(15, 40)))
        lines.append(f"{words.upper() if rng.random() < 0.3 else words}!!!")
    return lines


def spam_page(host: str, rng: random.Random) -> str:
    """Returns a page of such lines."""
    lines = "".join(f"<p>{line}</p>" for line in spam_lines(rng))
    phrase = " ".join(rng.sample(_SPAM, 4))
    main = f"<h1>{phrase}</h1>{lines}<p>{(phrase + ' ') * 8}</p>"
    return layout(host, phrase, main, rng)


_NOTES = (
    "Back soon.",
    "This page is being written.",
    "No stories here yet, please try again later.",
    "Thank you for your visit.",
)


def note_page(host: str, rng: random.Random) -> str:
    """Returns a page with almost nothing on it."""
    return layout(host, "Note", f"<p>{rng.choice(_NOTES)}</p>", rng)


# language: subjects, verbs with objects, places, glue
_LANGUAGES = {
    "de": (
        ("Der kleine Igel", "Die alte Katze", "Ein junger Hund", "Die Ente", "Das Mädchen", "Opa"),
        ("sucht einen roten Ball", "findet eine Nuss", "singt ein schönes Lied", "wartet geduldig",
         "erzählt eine lange Geschichte", "trägt einen grünen Hut"),
        ("im Wald", "am See", "hinter dem Haus", "auf der Wiese", "neben der Mühle"),
        ("und dann", "aber", "denn", "während"),
    ),
    "fr": (
        ("Le petit ours", "La vieille dame", "Un garçon", "La souris", "Le renard",
         "Ma grand-mère"),
        ("cherche une clé perdue", "mange une pomme rouge", "chante une chanson", "lit un livre",
         "raconte une histoire très drôle", "porte un chapeau bleu"),
        ("dans la forêt", "près du lac", "derrière la maison", "sous le pont", "à l'école"),
        ("et puis", "mais", "car", "pendant que"),
    ),
    "es": (
        ("El perro pequeño", "La niña", "Un pájaro azul", "Mi abuelo", "La rana", "El panadero"),
        ("busca una pelota roja", "come una manzana", "canta una canción", "lee un libro viejo",
         "cuenta una historia muy larga", "lleva un sombrero amarillo"),
        ("en el bosque", "cerca del río", "detrás de la casa", "en la plaza", "junto al mar"),
        ("y luego", "pero", "porque", "mientras"),
    ),
}  # fmt: skip
LANGUAGES = tuple(_LANGUAGES)


def foreign_text(language: str, rng: random.Random) -> str:
    """Returns some paragraphs of simple German, French or Spanish."""
    subjects, verbs, places, glue = _LANGUAGES[language]
    paragraphs = []
    for _ in range(rng.randrange(4, 8)):
        sentences = []
        for _ in range(rng.randrange(3, 6)):
            first = f"{rng.choice(subjects)} {rng.choice(verbs)} {rng.choice(places)}"
            second = f"{rng.choice(subjects)} {rng.choice(verbs)}"
            second = second[0].lower() + second[1:]
            sentences.append(f"{first}, {rng.choice(glue)} {second}.")
        paragraphs.append(" ".join(sentences))
    return "\n\n".join(paragraphs)


def foreign_page(host: str, language: str, rng: random.Random) -> str:
    """Returns a page in German, French or Spanish."""
    text = foreign_text(language, rng).replace("\n\n", "</p><p>")
    page = layout(host, language, f"<p>{text}</p>", rng)
    return page.replace('<html lang="en">', f'<html lang="{language}">')


def _paragraphs(one: Story) -> str:
    return "".join(f"<p>{html.escape(part)}</p>" for part in one.paragraphs)
