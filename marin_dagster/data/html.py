"""Turns pages (WARC files of HTML) into documents: the main text of each page."""

import contextlib
import glob
import os
import pickle
import selectors
import subprocess
import sys
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal
from urllib.parse import urlsplit

from marin_dagster.kinds import Documents, Pages
from marin_dagster.recipe import Context, Counts, StageError, Summary

if TYPE_CHECKING:
    from marin_dagster.data.extract_worker import Extracted, Settings
    from marin_dagster.data.warc import Page, PageError, Skipped

NUM_EXAMPLES = 5
WALL_FACTOR = 20  # a worker silent for so many times its processor limit is taken for dead


@dataclass(frozen=True, kw_only=True)
class ExtractText(Documents):
    """Extracts the main text of HTML pages, each in a worker process with limits.

    Documents have the page's host as source, its fetch time as `created`, and url, title, encoding
    and a guessed language (by common words; "" when unsure) as metadata. Order is that of the
    pages, whatever the number of workers.
    """

    stage: ClassVar[str] = "text"

    pages: Pages
    extractor: Literal["trafilatura", "resiliparse"] = "trafilatura"
    favor: Literal["precision", "balanced", "recall"] = "precision"  # of trafilatura
    min_chars: int = 25
    max_html_bytes: int = 5_000_000
    max_depth: int = 1_000  # nested elements
    cpu_seconds: float = 20.0  # per page
    memory_bytes: int = 4_000_000_000  # per worker
    max_lost_fraction: float = 0.5  # of HTML pages: empty, too short or failed; above, it fails

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, allowed in (
            ("extractor", ("trafilatura", "resiliparse")),
            ("favor", ("precision", "balanced", "recall")),
        ):
            if getattr(self, name) not in allowed:
                raise ValueError(
                    f"{name}={getattr(self, name)!r} of {self.address} is not known; "
                    f"choose from {', '.join(allowed)}"
                )
        for name in ("max_html_bytes", "max_depth", "cpu_seconds", "memory_bytes"):
            if getattr(self, name) <= 0:
                value = getattr(self, name)
                raise ValueError(f"{name}={value} of {self.address} must be above 0; raise it")

    def build(self, ctx: Context) -> Summary:
        from marin_dagster.data.documents import DocumentWriter, new_document

        tally = _Tally()
        folder = ctx.path(self.pages)
        total = _count_pages(folder)
        with DocumentWriter(ctx.out) as writer:
            items = _read_folder(folder)
            for item, extracted in _extract_all(items, self._settings(), ctx.placement.workers):
                if not tally.keeps(item, extracted, self.min_chars):
                    ctx.progress(tally.read, total, "pages")
                    continue
                assert extracted is not None
                url = item.url  # type: ignore[union-attr]
                language = guess_language(extracted.text)
                document = new_document(
                    extracted.text,
                    source=urlsplit(url).hostname or "",
                    created=item.date,  # type: ignore[union-attr]
                    metadata={
                        "url": url,
                        "title": extracted.title,
                        "language": language,
                        "encoding": extracted.encoding,
                    },
                )
                writer.write(document)
                tally.add(document["text"], language, document["source"])
                ctx.progress(tally.read, total, "pages", kept=tally.kept)
        tally.check(self.address, self.max_lost_fraction)
        return tally.summary()

    def _settings(self) -> "Settings":
        from marin_dagster.data.extract_worker import Settings

        return Settings(
            extractor=self.extractor,
            favor=self.favor,
            max_html_bytes=self.max_html_bytes,
            max_depth=self.max_depth,
            cpu_seconds=self.cpu_seconds,
            memory_bytes=self.memory_bytes,
        )


def _read_folder(folder: str) -> "Iterator[Page | Skipped | PageError]":
    from marin_dagster.data.warc import read_pages

    paths = sorted(
        path
        for pattern in ("*.warc", "*.warc.gz")
        for path in glob.glob(os.path.join(glob.escape(folder), "warc", pattern))
    )
    if not paths:
        raise StageError("bad_input", f"{folder}/warc holds no WARC file; rebuild the pages")
    for path in paths:
        yield from read_pages(path)


def _count_pages(folder: str) -> int | None:
    path = os.path.join(folder, "crawl.jsonl")
    if not os.path.exists(path):
        return None
    with open(path, "rb") as file:
        return sum(1 for _ in file)


class _Tally:
    """Accounts for every page of the input, and what people read about the output."""

    def __init__(self) -> None:
        self.read = self.kept = self.chars = self.html = 0
        self.dropped: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self.languages: Counter[str] = Counter()
        self.sources: Counter[str] = Counter()
        self.examples: list[dict[str, Any]] = []
        self.samples: list[str] = []

    def keeps(
        self, item: "Page | Skipped | PageError", extracted: "Extracted | None", min_chars: int
    ) -> bool:
        """Counts one page; whether it becomes a document."""
        from marin_dagster.data.warc import PageError, Skipped

        self.read += 1
        if isinstance(item, PageError):
            return self._fail(item.reason, item.url, item.message)
        if isinstance(item, Skipped):
            self.dropped[item.reason] += 1
            return False
        assert extracted is not None
        self.html += 1
        if extracted.error:
            return self._fail(extracted.error, item.url, extracted.message)
        short = "" if len(extracted.text) >= min_chars else "too_short"
        reason = extracted.dropped or ("empty_text" if not extracted.text else short)
        if reason:
            self.dropped[reason] += 1
        return not reason

    def _fail(self, reason: str, url: str, message: str) -> bool:
        self.errors[reason] += 1
        if len(self.examples) < NUM_EXAMPLES:
            self.examples.append({"reason": reason, "url": url, "message": message[:300]})
        return False

    def add(self, text: str, language: str, source: str) -> None:
        self.kept += 1
        self.chars += len(text)
        self.languages[language or "unsure"] += 1
        self.sources[source] += 1
        if len(self.samples) < 3:
            self.samples.append(text[:500])

    def check(self, address: str, max_lost_fraction: float) -> None:
        reasons = {**self.dropped, **self.errors}
        told = ", ".join(f"{name} {count}" for name, count in sorted(reasons.items()))
        if not self.kept:
            raise StageError(
                "bad_input",
                f"{address} kept 0 of {self.read} documents: {told or 'no page'}; look at the "
                "pages, or choose another extractor or a lower min_chars",
            )
        if self.html - self.kept > max_lost_fraction * self.html:
            raise StageError(
                "bad_input",
                f"{address} lost {self.html - self.kept} of {self.html} HTML pages ({told}), above "
                f"max_lost_fraction={max_lost_fraction}; look at them, or raise the limit",
            )

    def summary(self) -> Summary:
        samples = "\n\n---\n\n".join(self.samples)
        return Summary(
            numbers={
                "documents": self.kept,
                "characters": self.chars,
                "html_pages": self.html,
                "lost_fraction": round(1 - self.kept / self.html, 6),
            },
            counts=Counts(
                unit="pages",
                read=self.read,
                kept=self.kept,
                dropped=dict(self.dropped),
                errors=dict(self.errors),
            ),
            tables={
                "errors": self.examples,
                "languages": [
                    {"language": name, "documents": n} for name, n in self.languages.most_common()
                ],
                "sources": [
                    {"source": name, "documents": n} for name, n in self.sources.most_common(50)
                ],
            },
            notes={"first documents": samples},
        )


# ---- worker processes


def _extract_all(
    items: "Iterable[Page | Skipped | PageError]", settings: "Settings", num_workers: int
) -> "Iterator[tuple[Page | Skipped | PageError, Extracted | None]]":
    """Yields the items in their order, pages with what a worker made of them."""
    from marin_dagster.data.warc import Page

    pool = _Pool(settings, max(1, num_workers))
    waiting: deque[_Task] = deque()
    try:
        for item in items:
            task = _Task(item)
            waiting.append(task)
            if isinstance(item, Page):
                pool.submit(task)
            while waiting and (task := waiting[0]).is_done:
                yield waiting.popleft().result
            while len(waiting) > 32 * len(pool.workers):  # bounds the memory
                pool.wait()
                while waiting and waiting[0].is_done:
                    yield waiting.popleft().result
        while waiting:
            while not waiting[0].is_done:
                pool.wait()
            yield waiting.popleft().result
    finally:
        pool.close()


class _Task:
    """An item, and its answer once a worker gave it."""

    def __init__(self, item: "Page | Skipped | PageError"):
        self.item = item
        self.answer: Extracted | None = None

    @property
    def is_done(self) -> bool:
        return self.answer is not None or not hasattr(self.item, "body")

    @property
    def result(self) -> "tuple[Page | Skipped | PageError, Extracted | None]":
        return self.item, self.answer


class _Pool:
    """Workers that take one page at a time; one that dies is replaced and its page told."""

    def __init__(self, settings: "Settings", size: int):
        self._settings = settings
        self._selector = selectors.DefaultSelector()
        self.workers = [self._start() for _ in range(size)]

    def submit(self, task: _Task) -> None:
        """Gives the page to a worker, waiting until one is free."""
        while (free := next((worker for worker in self.workers if not worker.task), None)) is None:
            self.wait()
        free.send(task)

    def wait(self) -> None:
        """Waits until some worker answers, dies or is too long silent."""
        limit = self._settings.cpu_seconds * WALL_FACTOR
        ready = self._selector.select(timeout=1.0)
        for key, _ in ready:
            worker: _Worker = key.data
            if not worker.receive():
                self._replace(worker)
        now = time.monotonic()
        for worker in list(self.workers):
            if worker.task and now - worker.since > limit:
                self._replace(worker, timed_out=True)

    def _replace(self, worker: "_Worker", timed_out: bool = False) -> None:
        from marin_dagster.data.extract_worker import Extracted

        self._selector.unregister(worker.stdout)
        code = worker.end(kill=timed_out)
        if worker.task is None:
            raise StageError("error", f"an extraction worker ended with code {code} before a page")
        if worker.answered == 0 and code == 1:
            raise StageError("error", "the extraction worker does not start; see the run's log")
        if timed_out or code == -_SIGPROF:
            error, message = "timeout", f"above {self._settings.cpu_seconds} s of processor time"
        else:
            error, message = "worker_died", f"the extractor's process ended with code {code}"
        worker.task.answer = Extracted(error=error, message=message)
        self.workers[self.workers.index(worker)] = self._start()

    def _start(self) -> "_Worker":
        worker = _Worker(self._settings)
        self._selector.register(worker.stdout, selectors.EVENT_READ, worker)
        return worker

    def close(self) -> None:
        for worker in self.workers:
            worker.end(kill=True)
        self._selector.close()


_SIGPROF = 27


class _Worker:
    """One extraction process and the page that it has."""

    def __init__(self, settings: "Settings"):
        command = [sys.executable, "-m", "marin_dagster.data.extract_worker"]
        self._child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._stdin, self.stdout = self._child.stdin, self._child.stdout
        self._put(settings)
        self.task: _Task | None = None
        self.since = 0.0
        self.answered = 0

    def send(self, task: _Task) -> None:
        self.task, self.since = task, time.monotonic()
        self._put((task.item.body, task.item.content_type))  # type: ignore[union-attr]

    def receive(self) -> bool:
        """Takes the answer; False when the process died instead."""
        try:
            answer = pickle.load(self.stdout)
        except (EOFError, pickle.UnpicklingError):
            return False
        assert self.task is not None
        self.task.answer, self.task = answer, None
        self.answered += 1
        return True

    def end(self, kill: bool) -> int:
        """Ends the process and returns its exit code."""
        if kill:
            self._child.kill()
        code = self._child.wait()
        self.stdout.close()
        with contextlib.suppress(BrokenPipeError):
            self._stdin.close()
        return code

    def _put(self, value: object) -> None:
        with contextlib.suppress(BrokenPipeError):  # if it died, its closed stdout says so
            pickle.dump(value, self._stdin)
            self._stdin.flush()


# ---- language


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
