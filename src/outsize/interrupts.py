"""Stopping long-running work, such as encoding a corpus or clustering, between two chunks.

A signal asks a run to save and stop. The training loop checks for it after each step. Work that
takes longer than a few seconds calls `check_stop` between chunks, and the caller that entered
`stopping_when` turns `StopRequested` into the normal end of a stopped run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_should_stop: ContextVar[Callable[[], bool] | None] = ContextVar(
    "outsize_should_stop", default=None
)


class StopRequested(Exception):
    """Work has ended early because a stop was requested; this is not an error."""


@contextmanager
def stopping_when(should_stop: Callable[[], bool]) -> Iterator[None]:
    """Stop work in this context, in the same thread, once `should_stop` returns true.

    The innermost context applies.

    Args:
        should_stop: Whether to stop. It must be cheap to call, and stay true once it is.
    """
    token = _should_stop.set(should_stop)
    try:
        yield
    finally:
        _should_stop.reset(token)


@contextmanager
def also_stopping_when(should_stop: Callable[[], bool]) -> Iterator[None]:
    """Like `stopping_when`, and also stop when an enclosing context asks to."""
    around = _should_stop.get()
    with stopping_when(lambda: should_stop() or (around is not None and around())):
        yield


def stop_requested() -> bool:
    """Whether this process is asked to stop; always false outside of `stopping_when`."""
    should_stop = _should_stop.get()
    return should_stop is not None and should_stop()


def check_stop() -> None:
    """Raise `StopRequested` if this process is asked to stop.

    It looks at this process only. Where the work that follows is collective, all ranks must stop at
    the same place: use `collectives.check_stop_together` there, or `failures.failing_together`
    around the work of one rank.
    """
    if stop_requested():
        raise StopRequested
