"""Long work that the first rank does for all, such as clustering."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextvars import copy_context
from typing import TypeVar

from outsize.errors import ReclusterError
from outsize.interrupts import stop_requested, stopping_when
from outsize.ranks.collectives import gather_values, rank, world_size
from outsize.ranks.failures import failing_together

_SYNC_INTERVAL_S = 0.5
Result = TypeVar("Result")


def on_first_rank(work: Callable[[], Result]) -> Result | None:
    """Run work on the first rank while the others wait; all ranks call it.

    If any rank raises, all raise. If any rank is asked to stop, `interrupts.check_stop` ends the
    work within a second: ranks synchronize between its pieces. This also keeps the waiting ranks
    from the timeout of a collective.

    Returns:
        The result of the work on the first rank; `None` on the others.
    """
    if world_size() == 1:
        return work()
    result: Result | None = None
    with failing_together(ReclusterError):
        if rank() > 0:
            while _sync(is_working=False)[0]:
                pass
        else:
            try:
                with stopping_when(_stop_requested_on_any_rank()):
                    result = work()
            finally:
                _sync(is_working=False)
    return result


def _sync(is_working: bool) -> tuple[bool, bool]:
    """Whether the first rank is still working, and whether any rank is asked to stop."""
    facts = gather_values([is_working, stop_requested()])
    return any(working for working, _ in facts), any(asked for _, asked in facts)


def _stop_requested_on_any_rank() -> Callable[[], bool]:
    """A function: whether any rank is asked to stop, as of the last synchronization."""
    outside = copy_context()  # there `stop_requested` is that of this rank alone
    synced_at, is_asked = time.monotonic(), False

    def is_requested() -> bool:
        nonlocal synced_at, is_asked
        if not is_asked and time.monotonic() - synced_at >= _SYNC_INTERVAL_S:
            is_asked = outside.run(_sync, True)[1]
            synced_at = time.monotonic()
        return is_asked or outside.run(stop_requested)

    return is_requested
