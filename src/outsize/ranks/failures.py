"""If any rank raises, all raise, so that none waits for a rank that has failed.

`failing_together` and `failing_in_group` guard a block that all ranks enter; each costs a message
per rank. `announce_failure` costs nothing unless a rank fails: the others then raise.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from outsize.errors import DataError
from outsize.interrupts import StopRequested
from outsize.ranks.agreement import FAILURE_LINE, swap_headers
from outsize.ranks.collectives import RankGroup, gather_values


@contextmanager
def failing_together(kind: type[Exception]) -> Iterator[None]:
    """If any process raises inside the block, all raise.

    Args:
        kind: The error that the other ranks raise, with the number and the message of the rank that
            failed. If that rank was asked to stop, they raise `StopRequested`.
    """
    error: Exception | None = None
    try:
        yield
    except Exception as raised:
        error = raised
    message = None if error is None else str(error) or type(error).__name__
    outcomes = gather_values([message, isinstance(error, StopRequested)])
    if error is not None:
        raise error
    for other, (text, is_stop) in enumerate(outcomes):
        if text is not None:
            raise StopRequested if is_stop else kind(f"rank {other}: {text}")


@contextmanager
def failing_in_group(ranks: RankGroup | None, device: torch.device) -> Iterator[None]:
    """If any rank of a group raises inside the block, the others raise a `DataError`.

    Args:
        ranks: The ranks, which all enter the block; `None` for this rank alone.
        device: Where to create the messages.
    """
    error: Exception | None = None
    try:
        yield
    except Exception as raised:
        error = raised
    flags: list[list[int]] = []
    if ranks is not None:
        lines = [[int(error is not None)]] * ranks.size
        flags = swap_headers(ranks, "a check of items", "", lines, device)
    if error is not None:
        raise error
    if [1] in flags:
        raise DataError(
            f"rank {flags.index([1])} could not take this step; nothing was kept: see its error"
        )


def announce_failure(ranks: RankGroup, device: torch.device | None = None) -> None:
    """Make the other ranks raise in their current or next round: this rank has failed."""
    if ranks.size > 1:
        ranks.swap_counts(torch.tensor([FAILURE_LINE] * ranks.size, device=device))
