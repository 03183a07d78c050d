"""What reading and pushing rows cost, counted where it happens."""

from __future__ import annotations

from dataclasses import dataclass, field

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
