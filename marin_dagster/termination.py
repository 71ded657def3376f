"""Turns a signal that ends this process into a call of whoever has work to save.

Python runs signal handlers in the main thread, between two of its instructions: not while that
thread compiles a program or waits for a device. So a thread of its own hears the signal, by the
file descriptor that the interpreter writes to from whichever thread the kernel has picked.
"""

import contextlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn

HEARD = (signal.SIGTERM, signal.SIGINT)

Say = Callable[[str, str, Mapping[str, Any]], None]  # reason, message, evidence


class Termination:
    """The end of this process: announced by a signal, or decided by a thread of it."""

    def __init__(self) -> None:
        self._handler: Callable[[str], None] | None = None
        self._say: Say = lambda reason, message, evidence: None
        self.listening = False

    def listen(self, say: Say) -> None:
        """From now on signals are heard, and this process may be ended by its threads.

        `say` tells the supervisor how it ended. Call it in the main thread of a process that has
        one job. Without a handler SIGTERM exits with 143, SIGINT interrupts.
        """
        self._say, self.listening = say, True
        heard, written = socket.socketpair()
        written.setblocking(False)
        signal.set_wakeup_fd(written.fileno(), warn_on_full_buffer=False)
        self._sockets = heard, written
        for number in HEARD:
            signal.signal(number, self._in_main_thread)
        threading.Thread(target=self._hear, daemon=True, name="marin-signals").start()

    @contextlib.contextmanager
    def calls(self, handler: Callable[[str], None]) -> Iterator[None]:
        """Within the block a signal calls `handler` with its name, in another thread."""
        self._handler, before = handler, self._handler
        try:
            yield
        finally:
            self._handler = before

    def end(self, code: int, reason: str, message: str, evidence: Mapping[str, Any]) -> NoReturn:
        """Ends this process at once, whatever its main thread is at."""
        self._say(reason, message, evidence)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

    def _hear(self) -> None:
        while True:
            for number in self._sockets[0].recv(64):
                if number in HEARD and self._handler is not None:
                    self._handler(signal.Signals(number).name)

    def _in_main_thread(self, number: int, frame: object) -> None:
        if self._handler is not None:
            return  # it runs in the other thread
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        sys.exit(128 + number)


termination = Termination()
