"""What travels between a worker and the owner of rows, and what that costs."""

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
        gradients: Σg for those rows, one tensor a group.
        ticks: How many batches each sum covers; the row's clock moves by as much.
        squares: The sum of the rule's `square(g)` over those batches, one tensor a group;
            `None` where every sum covers one batch.
        exact: Rows whose sum must travel as exactly as can be, because nobody keeps what rounding
            leaves out; `None` for none. Without a meaning where nothing is rounded on the way.
    """

    ids: Int64[Tensor, " n"]
    gradients: tuple[Float[Tensor, "_ _"], ...]
    ticks: Int64[Tensor, " n"]
    squares: tuple[Float[Tensor, "_ _"], ...] | None = None
    exact: Bool[Tensor, " n"] | None = None

    def take(self, index: Int64[Tensor, " k"]) -> RowUpdate:
        """The part for some of its rows.

        Args:
            index: Which of them, counted from 0, ascending.
        """
        if index.shape[0] == self.ids.shape[0]:
            return self
        squares = None if self.squares is None else take_lines(self.squares, index)
        exact = None if self.exact is None else self.exact[index]
        gradients = take_lines(self.gradients, index)
        return RowUpdate(self.ids[index], gradients, self.ticks[index], squares, exact)


@dataclass(frozen=True)
class RowReply:
    """Rows that were asked for and are newer than what the asker holds.

    Attributes:
        stale: Which of the asked ids follow; in the order asked.
        rows: Their values, one tensor a group, in the type they are kept in.
        clocks: Their clocks: updates applied so far, ticks counted.
        state: Their optimizer state, one mapping a group; empty for a plain read.
        behind: Of the rows that do not follow, the greatest clock, counted from the one asked with
            (so 0 at most); `None` where there are none.
    """

    stale: Bool[Tensor, " n"]
    rows: tuple[Float[Tensor, "_ _"], ...]
    clocks: Int64[Tensor, " k"]
    state: tuple[Mapping[str, Float[Tensor, "_ _"]], ...] = field(default=())
    behind: int | None = None


def take_lines(
    groups: tuple[Float[Tensor, "_ _"], ...], index: Int64[Tensor, " k"]
) -> tuple[Float[Tensor, "_ _"], ...]:
    """Some lines of tensors that hold one line a row, group by group.

    Args:
        groups: One tensor a group; lines are counted through all of them.
        index: Which lines, ascending.
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
    """Counts of one rank over some time.

    Attributes:
        sent_bytes: Bytes sent to other ranks, by kind: "ids", "clocks" (with ticks, and flags of
            stale rows), "rows" (with optimizer state) and "gradients" (with their squares).
        reads: Distinct rows asked for by training steps.
        local: Of those, rows that this rank owns.
        hits: Of those, rows read from a valid copy.
        pushes: Rows pushed to their owner.
        evictions: Copies that gave way.
        largest_lag: The most updates of others a copy was behind its owner when it was read;
            `None` where no copy was read, or nobody asked its owner.
        exchange_s: Seconds spent in rounds with other ranks.
    """

    sent_bytes: dict[str, int] = field(default_factory=lambda: dict.fromkeys(BYTE_KINDS, 0))
    reads: int = 0
    local: int = 0
    hits: int = 0
    pushes: int = 0
    evictions: int = 0
    largest_lag: int | None = None
    exchange_s: float = 0.0

    def see_lag(self, lag: int) -> None:
        """Note how far behind a copy was."""
        self.largest_lag = lag if self.largest_lag is None else max(self.largest_lag, lag)
