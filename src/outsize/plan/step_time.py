"""The time of a step by part, from what was measured here and the link between ranks.

- *dense*: forward and backward pass and the optimizer of the dense weights, measured on one batch.
- *rows*: processor time that a rank spends on look-ups, caches, messages and updates, measured in
  the simulation.
- *exchange*: bytes over the link, and a latency for each round.

The parts are added, as if nothing overlapped.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from outsize.errors import ConfigError

_LINK = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([kMGT]?)bit(?:/s)?\s*")
_POWERS = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_ROUNDS = 4  # counts, requests, flags, rows
_ADVICE = {
    "dense": "a faster device for the dense weights, or a smaller [model]",
    "rows": "more ranks, or a smaller train.batch_size per rank",
    "exchange": "a faster link, embeddings.wire = 'int8', or a larger cache with wider bounds",
}


@dataclass(frozen=True)
class Link:
    """The link of a rank to the others.

    Attributes:
        bits_per_s: What it carries in each direction.
        latency_s: Time of a round without content.
    """

    bits_per_s: float
    latency_s: float = 0.0

    def seconds(self, num_bytes: float) -> float:
        """Time that bytes take."""
        return 8 * num_bytes / self.bits_per_s


@dataclass(frozen=True)
class StepTime:
    """Seconds of a step by part, and what they come to.

    Attributes:
        dense_s: Dense weights.
        rows_s: Rows on this rank.
        exchange_s: Messages on the link.
        steps_per_epoch: Steps of an epoch.
        num_ranks: Ranks, a machine each.
    """

    dense_s: float
    rows_s: float
    exchange_s: float
    steps_per_epoch: int
    num_ranks: int

    @property
    def parts(self) -> dict[str, float]:
        """Seconds by part."""
        return {"dense": self.dense_s, "rows": self.rows_s, "exchange": self.exchange_s}

    @property
    def total_s(self) -> float:
        """Seconds of a step."""
        return sum(self.parts.values())

    @property
    def bottleneck(self) -> str:
        """The part that takes longest."""
        return max(self.parts, key=lambda part: self.parts[part])

    @property
    def advice(self) -> str:
        """What makes the longest part shorter."""
        return _ADVICE[self.bottleneck]

    @property
    def hours_per_epoch(self) -> float:
        """Hours of one pass over the data."""
        return self.total_s * self.steps_per_epoch / 3600

    def summary(self) -> dict[str, Any]:
        """The times as plain values, for JSON."""
        return {
            **{f"{part}_s": seconds for part, seconds in self.parts.items()},
            "step_s": self.total_s,
            "hours_per_epoch": self.hours_per_epoch,
            "machine_hours_per_epoch": self.hours_per_epoch * self.num_ranks,
            "bottleneck": self.bottleneck,
            "advice": self.advice,
        }


def read_link(text: str, latency_us: float = 0.0) -> Link:
    """A link such as "25Gbit".

    Args:
        text: What it carries per second.
        latency_us: Microseconds of a round without content.
    """
    match = _LINK.fullmatch(text)
    if match is None or float(match[1]) == 0:
        raise ConfigError(f"{text!r} is no link: write what it carries as 25Gbit or 100Mbit")
    if not latency_us >= 0:
        raise ConfigError(f"--latency-us must be >= 0, but got {latency_us}")
    return Link(float(match[1]) * _POWERS[match[2]], latency_us / 1e6)


def exchange_seconds(
    link: Link, num_ranks: int, sent_bytes: float, dense_bytes: int, *, exchanges_rows: bool
) -> float:
    """Time of a step's messages on the link of one rank.

    Args:
        link: The link.
        num_ranks: Number of ranks.
        sent_bytes: Bytes of rows and gradients of rows that the rank sends.
        dense_bytes: Bytes of dense gradients, which are averaged over ranks by a ring.
        exchanges_rows: Whether rows travel.
    """
    if num_ranks == 1:
        return 0.0
    ring = 2 * (num_ranks - 1) / num_ranks * dense_bytes
    rounds = 2 * (num_ranks - 1) if dense_bytes else 0
    rounds += _ROUNDS if exchanges_rows else 0
    return link.seconds(sent_bytes + ring) + rounds * link.latency_s
