"""Gloo's threads, kept from taking cores from threads that they wait for.

Where a socket has data but another thread holds its lock, the one that reads gloo's sockets tries
again at once, for as long as that takes. If the other was sent to sleep in favour of this one, that
is the rest of a slice of time: several milliseconds for a message that takes a fifth of one. It
happens where ranks have no cores to spare. Linux does not let a batch thread preempt one that
computes.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

_THREADS = Path("/proc/self/task")
_NAME = "gloo_tcp_loop"


@contextlib.contextmanager
def starting_batch_threads() -> Iterator[None]:
    """Make batch threads of those that this thread starts in the block, where Linux can.

    A thread begins with the policy of the one that starts it.
    """
    if not hasattr(os, "SCHED_BATCH"):
        yield
        return
    before, number = os.sched_getscheduler(0), os.sched_param(0)
    if before != os.SCHED_OTHER:  # the user's choice
        yield
        return
    os.sched_setscheduler(0, os.SCHED_BATCH, number)
    try:
        yield
    finally:
        os.sched_setscheduler(0, before, number)


def schedule_gloo_as_batch() -> None:
    """Make batch threads of those that read the sockets of a group that others have made.

    They are known by their name, which not every version of torch gives them.
    """
    if not hasattr(os, "SCHED_BATCH"):
        return
    for thread in gloo_loops():
        with contextlib.suppress(OSError):  # it has ended, or this process may not
            os.sched_setscheduler(thread, os.SCHED_BATCH, os.sched_param(0))


def gloo_loops() -> list[int]:
    """The threads of this process that read gloo's sockets, if torch names them."""
    found = []
    for thread in _THREADS.iterdir() if _THREADS.is_dir() else ():
        with contextlib.suppress(OSError):  # it has ended
            if (thread / "comm").read_text().strip() == _NAME:
                found.append(int(thread.name))
    return found
