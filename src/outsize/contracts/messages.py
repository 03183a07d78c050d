"""Messages between workers and owners of rows, and counts of what they cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor


@dataclass(frozen=True)
class RowUpdate:
    """Gradients to apply.

    Attributes:
        ids: Store ids, ascending, each once.
        gradients: Σg of those rows, one tensor per group.
        ticks: Number of batches in each sum; the row's clock advances by as much.
        squares: The rule's `square(g)` summed over those batches, one tensor per group; `None` if
            every sum covers one batch.
        exact: Rows to send by the finer wire, because they have no error feedback; `None` for
            none. Ignored if nothing is rounded.
    """

    ids: Int64[Tensor, " n"]
    gradients: tuple[Float[Tensor, "_ _"], ...]
    ticks: Int64[Tensor, " n"]
    squares: tuple[Float[Tensor, "_ _"], ...] | None = None
    exact: Bool[Tensor, " n"] | None = None

    def take(self, index: Int64[Tensor, " k"]) -> RowUpdate:
        """The update of some of its rows, given their ascending positions in `ids`."""
        if index.shape[0] == self.ids.shape[0]:
            return self
        squares = None if self.squares is None else take_lines(self.squares, index)
        exact = None if self.exact is None else self.exact[index]
        gradients = take_lines(self.gradients, index)
        return RowUpdate(self.ids[index], gradients, self.ticks[index], squares, exact)


@dataclass(frozen=True)
class RowReply:
    """The requested rows whose clock is greater than the asked clock.

    Attributes:
        stale: row clock > asked clock, for each requested id: the rows that are sent. All rows, if
            the request had no clocks.
        rows: Values of the sent rows, one tensor per group, in the type of the table.
        clocks: Clocks of the sent rows.
        state: Optimizer state of the sent rows, one mapping per group; empty if the request had no
            clocks.
        behind: max(row clock − asked clock) over the rows that were not sent; ≤ 0. `None` if all
            were sent.
    """

    stale: Bool[Tensor, " n"]
    rows: tuple[Float[Tensor, "_ _"], ...]
    clocks: Int64[Tensor, " k"]
    state: tuple[Mapping[str, Float[Tensor, "_ _"]], ...] = field(default=())
    behind: int | None = None


def take_lines(
    groups: tuple[Float[Tensor, "_ _"], ...], index: Int64[Tensor, " k"]
) -> tuple[Float[Tensor, "_ _"], ...]:
    """Select lines from tensors with one line per row and one tensor per group.

    `index` is ascending, and lines are numbered over all groups.
    """
    if len(groups) == 1:
        return (groups[0].index_select(0, index),)
    sizes = torch.tensor([part.shape[0] for part in groups], device=index.device)
    stops = sizes.cumsum(0)
    ends = torch.searchsorted(index, stops)
    runs = index.split(ends.diff(prepend=ends.new_zeros(1)).tolist())
    starts = (stops - sizes).tolist()
    return tuple(
        part.index_select(0, run - start)
        for part, run, start in zip(groups, runs, starts, strict=True)
    )


BYTE_KINDS = ("ids", "clocks", "rows", "gradients")


@dataclass
class RowCounts:
    """Counts of one rank since they were last taken.

    Attributes:
        sent_bytes: Bytes sent to other ranks, by kind: "ids", "clocks" (with ticks and the flags of
            stale rows), "rows" (with optimizer state) and "gradients" (with their squares).
        reads: Distinct rows read by training steps.
        local: How many of these reads were of rows that this rank owns.
        hits: How many of these reads were served by a valid copy.
        pushes: Rows pushed to their owner.
        evictions: Copies that were evicted.
        largest_lag: max(owner's clock − copy's clock) over the copies that were read; `None` if no
            copy was read, or no copy was checked with its owner.
        exchange_s: Seconds spent in rounds with other ranks.
        wait_s: Seconds that steps have waited for these rounds; `None` if they do not overlap with
            the computation.
    """

    sent_bytes: dict[str, int] = field(default_factory=lambda: dict.fromkeys(BYTE_KINDS, 0))
    reads: int = 0
    local: int = 0
    hits: int = 0
    pushes: int = 0
    evictions: int = 0
    largest_lag: int | None = None
    exchange_s: float = 0.0
    wait_s: float | None = None

    def see_sent(self, bytes_by_kind: Mapping[str, int]) -> None:
        """Record a message to another rank."""
        for kind, size in bytes_by_kind.items():
            self.sent_bytes[kind] += size

    def see_lag(self, lag: int) -> None:
        """Record the lag of a copy that was read."""
        self.largest_lag = lag if self.largest_lag is None else max(self.largest_lag, lag)
