"""Memory that this process may still allocate."""

from __future__ import annotations

import os
import re
import resource
from pathlib import Path

_CGROUP_FILES = (  # limit and use: version 2, then version 1
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    (
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
        "/sys/fs/cgroup/memory/memory.usage_in_bytes",
    ),
)


def available_bytes() -> int | None:
    """Bytes that this process may still allocate; `None` if unknown.

    The minimum of the free memory of the machine, of its container, and of the
    address space (`ulimit -v`). Ranks of one machine share the first two evenly.
    """
    num_sharing = max(1, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    shared = [size for size in (_of_machine(), _of_container()) if size is not None]
    found = [size // num_sharing for size in shared]
    if (own := _of_address_space()) is not None:
        found.append(own)
    return min(found, default=None)


def _of_machine() -> int | None:
    content = _read("/proc/meminfo")
    match = re.search(r"MemAvailable:\s+(\d+) kB", content or "")
    return int(match[1]) * 1024 if match else None


def _of_container() -> int | None:
    for limit_file, use_file in _CGROUP_FILES:
        limit, use = _read(limit_file), _read(use_file)
        if limit and use and limit.strip().isdigit():
            # Cached files count as used, though they give way: the machine's own number has them.
            return max(int(limit) - int(use), int(limit) // 2)
    return None


def _of_address_space() -> int | None:
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    pages = _read("/proc/self/statm")
    if limit == resource.RLIM_INFINITY or not pages:
        return None
    return max(0, limit - int(pages.split()[0]) * resource.getpagesize())


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text("utf-8")
    except OSError:
        return None
