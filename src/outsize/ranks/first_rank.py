"""Work that the first rank does for all, such as a clustering of minutes."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextvars import copy_context
from typing import TypeVar

from outsize.errors import ReclusterError
from outsize.interrupts import stop_requested, stopping_when
from outsize.ranks.collectives import failing_together, gather_values, rank, world_size

_SECONDS_BETWEEN_MEETINGS = 0.5
Result = TypeVar("Result")


def on_first_rank(work: Callable[[], Result]) -> Result | None:
    """Let the first rank work while the others wait; entered by all ranks.

    If the work raises, all ranks raise. If any rank is asked to stop, `interrupts.check_stop` ends
    the work within a second: ranks meet between its pieces, which also keeps those that wait from
    running into the timeout of a collective.

    Returns:
        What the work returned, on the first rank; `None` on the others.
    """
    if world_size() == 1:
        return work()
    result: Result | None = None
    with failing_together(ReclusterError):
        if rank() > 0:
            while _meet(is_working=False)[0]:
                pass
        else:
            try:
                with stopping_when(_any_rank_asks()):
                    result = work()
            finally:
                _meet(is_working=False)
    return result


def _meet(is_working: bool) -> tuple[bool, bool]:
    """Whether the first rank still works, and whether any rank is asked to stop."""
    facts = gather_values([is_working, stop_requested()])
    return any(working for working, _ in facts), any(asked for _, asked in facts)


def _any_rank_asks() -> Callable[[], bool]:
    """Whether any rank is asked to stop, as far as the last meeting tells."""
    outside = copy_context()  # where `stop_requested` is this rank's own answer
    met_at, is_asked = time.monotonic(), False

    def asks() -> bool:
        nonlocal met_at, is_asked
        if not is_asked and time.monotonic() - met_at >= _SECONDS_BETWEEN_MEETINGS:
            is_asked = outside.run(_meet, True)[1]
            met_at = time.monotonic()
        return is_asked or outside.run(stop_requested)

    return asks
