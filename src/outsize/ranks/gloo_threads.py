"""Gloo's thread that reads sockets, kept from taking cores from threads that it waits for.

Where a socket has data but another thread holds its lock, gloo tries again at once, for as long as
that takes. If the other thread was sent to sleep in favour of this one, that is the rest of a slice
of time: several milliseconds for a message that takes a fifth of one. It happens where ranks have
no cores to spare. Linux does not let a batch thread preempt one that computes.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

_THREADS = Path("/proc/self/task")
_NAME = "gloo_tcp_loop"


def schedule_gloo_as_batch() -> int:
    """Make batch threads of those of this process that read gloo's sockets.

    Returns:
        The number of such threads; 0 where the system or this version of torch has none.
    """
    if not hasattr(os, "SCHED_BATCH") or not _THREADS.is_dir():
        return 0
    found = 0
    for thread in _THREADS.iterdir():
        with contextlib.suppress(OSError):  # it has ended, or this process may not
            if (thread / "comm").read_text().strip() == _NAME:
                os.sched_setscheduler(int(thread.name), os.SCHED_BATCH, os.sched_param(0))
                found += 1
    return found
