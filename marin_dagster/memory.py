"""Turns what the kernel says of memory into what a worker can have, and whether it had more."""

import glob
import os
from collections.abc import Iterator
from pathlib import Path

ACCELERATORS = ("/dev/nvidia[0-9]*", "/dev/accel*", "/dev/vfio/[0-9]*", "/dev/kfd")
ROOT = "/sys/fs/cgroup"


def oom_kills() -> int:
    """Out-of-memory kills that the kernel has counted in this control group; 0 if it cannot say."""
    for folder, version in _groups():
        words = _read(folder / ("memory.events" if version == 2 else "memory.oom_control")).split()
        counts = dict(zip(words[::2], words[1::2], strict=False))
        if "oom_kill" in counts:
            return int(counts["oom_kill"])
    return 0


def available_memory() -> int | None:
    """Bytes that are free here; None when the weights would not lie in this memory.

    That is the case where there is an accelerator, and where the kernel does not say.
    """
    on_cpu = os.environ.get("JAX_PLATFORMS") == "cpu"
    if not on_cpu and any(glob.glob(pattern) for pattern in ACCELERATORS):
        return None
    rows = _read(Path("/proc/meminfo")).splitlines()
    free = [int(row.split()[1]) * 1024 for row in rows if row.startswith("MemAvailable:")]
    for folder, version in _groups():
        names = ("memory.max", "memory.current")
        if version == 1:
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes")
        most, used = (_read(folder / name).strip() for name in names)
        if most.isdigit() and used.isdigit():
            free.append(max(0, int(most) - int(used)))
    return min(free, default=None)


def _groups() -> Iterator[tuple[Path, int]]:
    """The control groups of this process, each with its version, its own before those above."""
    for line in _read(Path("/proc/self/cgroup")).splitlines():
        _, controllers, group = line.split(":", 2)
        if controllers in ("", "memory"):
            root = ROOT if not controllers else f"{ROOT}/memory"
            while group.strip("/"):  # a container sees its own group as the root
                yield Path(root + group), 1 if controllers else 2
                group = group.rpartition("/")[0]
            yield Path(root), 1 if controllers else 2


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
