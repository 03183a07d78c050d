"""Stopping long work between its pieces, such as an encoding of a corpus or a clustering.

A signal asks a run to save and stop. The loop looks after each step; work that takes longer than a
few seconds asks here between its pieces, and whoever set the question turns `StopRequested` into
the ordinary end of a stopped run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_asks: ContextVar[Callable[[], bool] | None] = ContextVar("outsize_stop_asks", default=None)


class StopRequested(Exception):
    """Work that ended early because a stop was asked for; no error, and nothing to mend."""


@contextmanager
def stopping_when(asks: Callable[[], bool]) -> Iterator[None]:
    """Let work in this context, in the same thread, stop once `asks` is true; the innermost counts.

    Args:
        asks: Quick to call, and once true always true.
    """
    token = _asks.set(asks)
    try:
        yield
    finally:
        _asks.reset(token)


@contextmanager
def also_stopping_when(asks: Callable[[], bool]) -> Iterator[None]:
    """As `stopping_when`, besides what is asked for around it."""
    around = _asks.get()
    with stopping_when(lambda: asks() or (around is not None and around())):
        yield


def stop_requested() -> bool:
    """Whether this process is asked to stop; never outside of `stopping_when`."""
    asks = _asks.get()
    return asks is not None and asks()


def check_stop() -> None:
    """Raise `StopRequested` if this process is asked to stop.

    Only this process: where ranks meet in the work that follows, all of them must leave it at the
    same place. Use `collectives.check_stop_together` there, or `collectives.failing_together`
    around work of one rank.
    """
    if stop_requested():
        raise StopRequested
