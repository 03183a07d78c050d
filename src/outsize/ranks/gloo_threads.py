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


def schedule_gloo_as_batch() -> None:
    """Make batch threads of those of this process that read gloo's sockets, where Linux can."""
    if not hasattr(os, "SCHED_BATCH"):
        return
    for thread in gloo_loops():
        with contextlib.suppress(OSError):  # it has ended, or this process may not
            os.sched_setscheduler(thread, os.SCHED_BATCH, os.sched_param(0))


def gloo_loops() -> list[int]:
    """The threads of this process that read gloo's sockets.

    There are none where the system does not list threads, and in versions of torch that do not name
    them.
    """
    found = []
    for thread in _THREADS.iterdir() if _THREADS.is_dir() else ():
        with contextlib.suppress(OSError):  # it has ended
            if (thread / "comm").read_text().strip() == _NAME:
                found.append(int(thread.name))
    return found
