"""Turns the file that a worker writes its messages to into what the worker has said, each once."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dagster as dg

from marin_dagster.recipe import Recipe, StageError, Summary
from marin_dagster.record import summary_from
from marin_dagster.store import BuildContext

CUT_SECONDS = 30.0  # what is missing for longer is lost


class Inbox:
    """What a worker has said so far; a message that comes again, known by its number, is not."""

    def __init__(self, build: BuildContext, published: Callable[[Recipe], None]):
        self._build = build
        self._published = published
        self._last = 0
        self.summary: Summary | None = None
        self.failure: StageError | None = None

    @property
    def count(self) -> int:
        return self._last

    def lacks(self, body: dict[str, Any]) -> int:
        """How many messages should have come before this one and have not."""
        return max(0, body["number"] - self._last - 1)

    def receive(self, body: dict[str, Any]) -> None:
        if body["number"] <= self._last:
            return
        if lost := self.lacks(body):
            self._build.log(f"{lost} messages of the worker were lost before {body['number']}")
        self._last = body["number"]
        kind = body["kind"]
        if kind == "progress":
            self._build.progress(body["done"], body["total"], body["unit"], **body["metrics"])
        elif kind == "log":
            self._build.log(body["message"])
        elif kind == "failure":
            self.failure = StageError(body["reason"], body["message"], body["evidence"])
        elif kind == "publish":
            made = {item.address: item for item in self._build.recipe.makes}[body["address"]]
            self._build.publish(made, body["folder"], summary_from(body["summary"]))
            self._published(made)
        elif kind == "summary":
            self.summary = summary_from(body["summary"])


class FileMessages(dg.PipesMessageReader):
    """Reads the messages of a worker from a file, whenever `drain` is called.

    Custom messages are handed over as they come; Dagster's own reader keeps them to the end. A
    file that is gone, cut short or cut within a line for a while is read again once it is whole.
    """

    def __init__(self, path: str, inbox: Inbox):
        self._path = Path(path)
        self._inbox = inbox
        self._offset = 0
        self._handler: Any = None
        self._handled: set[bytes] = set()  # the few lines that are not numbered
        self._cut_since: float | None = None

    @contextmanager
    def read_messages(self, handler) -> Iterator[dict[str, Any]]:
        self._handler = handler
        self._path.write_text("")
        try:
            yield {"path": str(self._path)}
        finally:
            self.drain(last=True)
            self._path.unlink(missing_ok=True)

    def drain(self, last: bool = False) -> None:
        """Handles every whole line that came since the last call.

        A line that is no message may become one, and what is missing may come, for a while; after
        the `last` call nothing does.
        """
        try:
            if self._path.stat().st_size < self._offset:
                self._offset = 0
            with self._path.open("rb") as file:
                file.seek(self._offset)
                lines = file.readlines()
        except OSError:
            return
        for line in lines:
            if not line.endswith(b"\n"):
                return
            message = _parse(line)
            if self._is_cut(message) and not last:
                self._offset = 0  # look at everything again
                return
            self._offset += len(line)
            if message is not None:
                self._handle(line, message)

    def _is_cut(self, message: dict[str, Any] | None) -> bool:
        """True when this line shows that something is missing that may still come."""
        whole = message is not None
        if message is not None and message["method"] == "report_custom_message":
            whole = not self._inbox.lacks(message["params"]["payload"])
        if whole:
            self._cut_since = None
            return False
        now = time.monotonic()
        self._cut_since = self._cut_since or now
        return now - self._cut_since < CUT_SECONDS

    def _handle(self, line: bytes, message: dict[str, Any]) -> None:
        if message["method"] == "report_custom_message":
            self._inbox.receive(message["params"]["payload"])
        elif line not in self._handled:
            self._handled.add(line)
            self._handler.handle_message(message)

    def no_messages_debug_text(self) -> str:
        return f"Attempted to read messages of the worker from {self._path}."


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        message = json.loads(line)
    except ValueError:
        return None
    return message if isinstance(message, dict) and "method" in message else None
