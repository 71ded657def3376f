"""Reasons rest on evidence, and what has none is not guessed."""

import errno
import pickle

import pytest

from marin_dagster.failure import (
    RETRIES,
    Terminated,
    evidence_of,
    exit_code_of,
    judge_exit,
    message_of,
    reason_of,
)
from marin_dagster.recipe import REASONS, StageError


@pytest.mark.parametrize(
    ("code", "kills", "reason", "evidence"),
    [
        (-9, 0, "killed", {"signal": "SIGKILL", "exit_code": 137}),
        (-9, 2, "oom", {"signal": "SIGKILL", "exit_code": 137, "oom_kills": 2}),
        (-11, 2, "killed", {"signal": "SIGSEGV", "exit_code": 139}),
        (-15, 0, "preempted", {"signal": "SIGTERM", "exit_code": 143}),
        (143, 0, "preempted", {"exit_code": 143}),
        (75, 0, "preempted", {"exit_code": 75}),
        (124, 0, "hang", {"exit_code": 124}),
        (1, 2, "error", {"exit_code": 1}),
    ],
)
def test_the_end_of_a_process_is_told_by_signal_exit_code_and_kernel(code, kills, reason, evidence):
    assert judge_exit(code, oom_kills=kills) == (reason, evidence)


def test_a_worker_tells_how_it_ended_by_a_code_that_is_read_as_the_same_reason():
    for reason in ("preempted", "hang", "error"):
        code = exit_code_of(StageError(reason, "as it was"))
        assert judge_exit(code, oom_kills=0)[0] == reason
    assert all(exit_code_of(StageError(reason, "as it was")) != 0 for reason in REASONS)


@pytest.mark.parametrize(
    ("error", "reason", "evidence"),
    [
        (MemoryError(), "oom", {"exception": "MemoryError"}),
        (OSError(errno.ENOMEM, "no memory"), "oom", {"exception": "OSError"}),
        (OSError(errno.ENOENT, "no file"), "error", {"exception": "FileNotFoundError"}),
        (KeyboardInterrupt(), "user_cancel", {"signal": "SIGINT"}),
        (Terminated(), "preempted", {"signal": "SIGTERM"}),
        (SystemExit(143), "preempted", {"exception": "SystemExit"}),
        (SystemExit(1), "error", {"exception": "SystemExit"}),
        (StageError("hang", "silent", {"limit_seconds": 3}), "hang", {"limit_seconds": 3}),
    ],
)
def test_an_exception_has_a_reason_and_evidence(error, reason, evidence):
    assert (reason_of(error), evidence_of(error)) == (reason, evidence)


def test_an_array_that_does_not_fit_is_out_of_memory():
    import jax.numpy as jnp

    with pytest.raises(Exception, match="RESOURCE_EXHAUSTED") as caught:
        jnp.zeros(2**46, dtype=jnp.int8).block_until_ready()
    assert reason_of(caught.value) == "oom"


def test_a_long_message_is_cut():
    assert len(message_of(ValueError("x" * 9_000))) < 2_100


def test_what_was_found_out_travels_between_processes():
    error = pickle.loads(pickle.dumps(StageError("oom", "as asked", {"oom_kills": 1})))
    assert (error.reason, error.message, error.evidence) == ("oom", "as asked", {"oom_kills": 1})


def test_every_reason_has_a_rule_and_a_person_who_cancels_is_obeyed():
    assert set(RETRIES) == set(REASONS)
    never = {reason for reason, retry in RETRIES.items() if not retry.times}
    assert never == {"oom", "timeout", "diverged", "bad_input", "user_cancel", "error"}
