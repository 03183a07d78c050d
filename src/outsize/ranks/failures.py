"""If any rank raises, all raise, so that none waits for a rank that has failed.

`failing_together` and `failing_in_group` guard a block that all ranks enter; each costs a message
per rank. `announce_failure` costs nothing unless a rank fails: the others then raise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

from outsize.errors import DataError
from outsize.interrupts import StopRequested
from outsize.ranks.agreement import FAILURE_LINE, swap_headers
from outsize.ranks.collectives import RankGroup, gather_values

Share = Callable[[Exception | None], Sequence[Exception | None]]


@contextmanager
def failing_together(kind: type[Exception]) -> Iterator[None]:
    """If any process raises inside the block, all raise.

    Args:
        kind: The error that the other ranks raise, with the number and the message of the rank that
            failed. If that rank was asked to stop, they raise `StopRequested`.
    """

    def share(error: Exception | None) -> list[Exception | None]:
        message = None if error is None else str(error) or type(error).__name__
        outcomes = gather_values([message, isinstance(error, StopRequested)])
        return [
            None if text is None else StopRequested() if is_stop else kind(f"rank {rank}: {text}")
            for rank, (text, is_stop) in enumerate(outcomes)
        ]

    with _raising_on_all(share):
        yield


@contextmanager
def failing_in_group(ranks: RankGroup | None, device: torch.device) -> Iterator[None]:
    """If any rank of a group raises inside the block, the others raise a `DataError`.

    Args:
        ranks: The ranks, which all enter the block; `None` for this rank alone.
        device: Where to create the messages.
    """

    def share(error: Exception | None) -> list[Exception | None]:
        if ranks is None:
            return []
        lines = [[int(error is not None)]] * ranks.size
        flags = swap_headers(ranks, "a check of items", "", lines, device)
        return [
            DataError(f"rank {rank} could not take this step; nothing was kept: see its error")
            if has_raised
            else None
            for rank, (has_raised,) in enumerate(flags)
        ]

    with _raising_on_all(share):
        yield


def announce_failure(ranks: RankGroup, device: torch.device | None = None) -> None:
    """Make the other ranks raise in their current or next round: this rank has failed."""
    if ranks.size > 1:
        ranks.swap_counts(torch.tensor([FAILURE_LINE] * ranks.size, device=device))


@contextmanager
def _raising_on_all(share: Share) -> Iterator[None]:
    """Raise this rank's error, or the first that another rank shares.

    Args:
        share: Given this rank's error, the error to raise for each rank; `None` for no error.
    """
    error: Exception | None = None
    try:
        yield
    except Exception as raised:
        error = raised
    errors = share(error)
    if error is not None:
        raise error
    for other in errors:
        if other is not None:
            raise other
