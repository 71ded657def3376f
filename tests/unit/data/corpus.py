"""A small corpus on disk, and the inputs that stand for it."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from marin_dagster.data.documents import (
    ConversationWriter,
    DocumentWriter,
    new_document,
)
from marin_dagster.data.tokenizer import TrainTokenizer
from marin_dagster.kinds import Conversations, Documents
from marin_dagster.recipe import Context, Summary

TOLD = "the little robot found a red box near old trees and opened it with care"
WORDS = tuple(TOLD.split())


def text(number: int) -> str:
    """A text of its own for every number, of 3 to 40 words."""
    length = 3 + (number * 7) % 38
    words = [WORDS[(number * 5 + i * (1 + number % 3)) % len(WORDS)] for i in range(length)]
    return f"Story {number}.\n\n" + " ".join(words) + f"\n  indented {number * 37}\n"


@dataclass(frozen=True, kw_only=True)
class TextCorpus(Documents):
    """As many texts as asked for."""

    stage: ClassVar[str] = "raw"
    size: int = 200
    extra: tuple[str, ...] = ()
    language: str = ""

    def build(self, ctx: Context) -> Summary:
        with DocumentWriter(ctx.out, shard_documents=64) as writer:
            for content in (*map(text, range(self.size)), *self.extra):
                metadata = {"language": self.language}
                writer.write(new_document(content, source="toy", metadata=metadata))
        return Summary(numbers={})


@dataclass(frozen=True, kw_only=True)
class ChatCorpus(Conversations):
    """Conversations of one to three exchanges; `roles` replaces the roles in turn."""

    stage: ClassVar[str] = "raw"
    size: int = 40
    roles: tuple[str, ...] = ("user", "assistant")

    def build(self, ctx: Context) -> Summary:
        with ConversationWriter(ctx.out) as writer:
            for number in range(self.size):
                messages = [
                    {"role": self.roles[i % len(self.roles)], "content": text(number + i)}
                    for i in range(2 * (1 + number % 3))
                ]
                writer.write(
                    {"id": f"c{number}", "messages": messages, "source": "toy", "metadata": {}}  # pyright: ignore
                )
        return Summary(numbers={})


CORPUS = TextCorpus(name="toy", version="dev")
CHATS = ChatCorpus(name="toychats", version="dev")
TOKENIZER = TrainTokenizer(name="toy", version="dev", documents=(CORPUS,), vocab_size=330)


def build_tokenizer(root: Path) -> Path:
    """Builds the corpus and its tokenizer under a root; returns the root."""
    from tests.fake_context import build

    for recipe in (CORPUS, CHATS, TOKENIZER):
        build(recipe, root)
    return root
