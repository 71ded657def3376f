"""Turns the ways in which a build ends into a reason, its evidence, and whether to try again."""

import errno
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from marin_dagster.recipe import REASONS, StageError

MESSAGE_CHARACTERS = 2_000
PREEMPTED_EXIT, STALLED_EXIT = 75, 124  # EX_TEMPFAIL; what timeout(1) returns
PREEMPTED_EXITS = (PREEMPTED_EXIT, 128 + signal.SIGTERM)  # the second is what a shell calls it
XLA_ERRORS = ("XlaRuntimeError", "JaxRuntimeError")


@dataclass(frozen=True, kw_only=True)
class Retry:
    """How often a build that ended for a reason is tried again, and after how long."""

    times: int
    delay_seconds: float = 0.0


NEVER = Retry(times=0)
RETRIES: Mapping[str, Retry] = {
    "preempted": Retry(times=5, delay_seconds=5.0),  # somebody needed the machine; it comes back
    "killed": Retry(times=1, delay_seconds=2.0),
    "hang": Retry(times=1, delay_seconds=2.0),
    "oom": NEVER,  # these would end in the same way again
    "timeout": NEVER,
    "diverged": NEVER,
    "bad_input": NEVER,
    "error": NEVER,
    "user_cancel": NEVER,
}
assert set(RETRIES) == set(REASONS)


class Terminated(KeyboardInterrupt):
    """SIGTERM, told apart from the interrupt that a person sends."""


def reason_of(error: BaseException) -> str:
    """Sorts an exception into one of `recipe.REASONS`."""
    if isinstance(error, StageError):
        return error.reason
    if _is_out_of_memory(error):
        return "oom"
    if isinstance(error, Terminated):
        return "preempted"
    if isinstance(error, SystemExit):
        return _reason_of_code(error.code)
    if isinstance(error, Exception):
        return "error"
    return "user_cancel"  # KeyboardInterrupt, or the way in which an orchestrator cancels


def message_of(error: BaseException) -> str:
    """An exception in words, cut where nobody reads on."""
    reason = reason_of(error)
    if reason == "user_cancel":
        return "interrupted"
    if isinstance(error, Terminated):
        return "terminated by SIGTERM from outside"
    text = error.message if isinstance(error, StageError) else f"{type(error).__name__}: {error}"
    return text if len(text) <= MESSAGE_CHARACTERS else f"{text[:MESSAGE_CHARACTERS]}…"


def evidence_of(error: BaseException) -> dict[str, Any]:
    """What a reason rests on: a signal, an exit code, a limit, the kind of the exception."""
    if isinstance(error, StageError):
        return dict(error.evidence)
    if isinstance(error, Terminated):
        return {"signal": "SIGTERM"}
    if reason_of(error) == "user_cancel":
        return {"signal": "SIGINT"}
    return {"exception": type(error).__name__}


def judge_exit(code: int, *, oom_kills: int) -> tuple[str, dict[str, Any]]:
    """The reason and evidence of a process that ended with `code`, negative for a signal.

    SIGKILL counts as `oom` only when the kernel counted `oom_kills` while the process ran.
    """
    if code >= 0:
        return _reason_of_code(code), {"exit_code": code}
    evidence: dict[str, Any] = {"signal": signal.Signals(-code).name, "exit_code": 128 - code}
    if -code == signal.SIGTERM:
        return "preempted", evidence
    if -code == signal.SIGKILL and oom_kills > 0:
        return "oom", {**evidence, "oom_kills": oom_kills}
    return "killed", evidence


def judge_status(status: int) -> tuple[str, dict[str, Any]]:
    """The reason and evidence of an exit status as a shell has it, 128 and the number of a signal.

    SIGKILL counts as `killed`: who sent it has to be asked of somebody else.
    """
    by_signal = status - 128 in {*signal.Signals}
    return judge_exit(128 - status if by_signal else status, oom_kills=0)


def exit_code_of(error: BaseException) -> int:
    """The exit status by which a worker tells a scheduler how it ended: 0 only when it is done."""
    return {"preempted": PREEMPTED_EXIT, "hang": STALLED_EXIT}.get(reason_of(error), 1)


def _reason_of_code(code: object) -> str:
    if code == STALLED_EXIT:
        return "hang"
    return "preempted" if code in PREEMPTED_EXITS else "error"


def _is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, MemoryError):
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return type(error).__name__ in XLA_ERRORS and "RESOURCE_EXHAUSTED" in str(error)
