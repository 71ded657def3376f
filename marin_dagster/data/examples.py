"""Turns a seed into documents of a known label, for a classifier to learn from."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from marin_dagster.data.stories import CHATS
from marin_dagster.kinds import Documents
from marin_dagster.recipe import Context, Counts, Summary

EXAMPLES = CHATS + 1_000_000  # first index of the stories that only classifiers see


@dataclass(frozen=True, kw_only=True)
class ExampleDocuments(Documents):
    """Makes stories, or spam of the kind that fills link farms."""

    stage: ClassVar[str] = "raw"

    label: Literal["story", "spam"]
    seed: int
    num_documents: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.label not in ("story", "spam"):
            raise ValueError(f"label={self.label!r} of {self.address} is neither story nor spam")
        if self.num_documents < 1:
            raise ValueError(
                f"num_documents={self.num_documents} of {self.address} is below 1; raise it"
            )

    def build(self, ctx: Context) -> Summary:
        from marin_dagster.data.documents import DocumentWriter, new_document

        with DocumentWriter(ctx.out) as writer:
            for index in range(self.num_documents):
                writer.write(new_document(self._text(index), source=self.label, metadata={}))
        total = self.num_documents
        return Summary(
            numbers={"documents": total},
            counts=Counts(unit="documents", read=total, kept=total),
        )

    def _text(self, index: int) -> str:
        import random

        from marin_dagster.data.site_pages import spam_lines
        from marin_dagster.data.stories import story

        if self.label == "story":
            return story(self.seed, EXAMPLES + index).text
        return "\n".join(spam_lines(random.Random(f"spam/{self.seed}/{index}")))
