"""Turns a child process into one that ends when its parent does."""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # Linux, prctl(2)


def die_with_parent() -> None:
    """Asks the kernel to kill this process when its parent ends, however that happens.

    Call it first in every child. Where the kernel cannot (not Linux), nothing happens.
    """
    if not sys.platform.startswith("linux"):
        return
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if parent == 1 or os.getppid() != parent:  # it ended before the kernel was asked
        os._exit(1)
