"""Turns what the kernel says into the bytes of memory that a worker on this machine can have."""

import glob
import os
from pathlib import Path

ACCELERATORS = ("/dev/nvidia[0-9]*", "/dev/accel*", "/dev/vfio/[0-9]*", "/dev/kfd")


def available_memory() -> int | None:
    """Bytes that are free here; None when the weights would not lie in this memory.

    That is the case where there is an accelerator, and where the kernel does not say.
    """
    on_cpu = os.environ.get("JAX_PLATFORMS") == "cpu"
    if not on_cpu and any(glob.glob(pattern) for pattern in ACCELERATORS):
        return None
    try:
        rows = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    sizes = {
        name: int(rest.split()[0]) * 1024 for name, _, rest in (r.partition(":") for r in rows)
    }
    return min([sizes["MemAvailable"], *_group_limits()])


def _group_limits() -> list[int]:
    """The memory limits of the control groups above this process, less what is in use."""
    found = []
    for limit, usage in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        (
            "/sys/fs/cgroup/memory/memory.limit_in_bytes",
            "/sys/fs/cgroup/memory/memory.usage_in_bytes",
        ),
    ):
        try:
            most, used = Path(limit).read_text().strip(), Path(usage).read_text().strip()
        except OSError:
            continue
        if most.isdigit():
            found.append(max(0, int(most) - int(used)))
    return found
