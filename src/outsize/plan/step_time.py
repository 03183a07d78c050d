"""The time of a step by part, from what was measured and the link between ranks.

- *dense*: a batch is made, forward and backward pass, and the optimizer of the dense weights.
- *rows*: processor time that a rank spends on look-ups, caches, messages and updates, measured in
  the simulation.
- *exchange*: bytes over the link, a latency for each round, and the waiting of ranks of one
  machine for slower ones.

The parts are added, as if nothing overlapped.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field, replace
from typing import Any

from outsize.errors import ConfigError
from outsize.plan.calibration import Calibration
from outsize.plan.traffic import Traffic

_LINK = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([kMGT]?)bit(?:/s)?\s*")
_POWERS = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
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
        peer_s: Time that each rank beyond two adds to a round in which all send to all.
        mean_s: Time that averaging gradients takes whatever their size, besides
            `mean_latency_s` for each rank.
        mean_latency_s: Time of each message of that without content.
        mean_byte_s: Time per byte that a rank sends to average a gradient, if that is longer than
            what the link takes: ranks also add up what they get, while they compute.
    """

    bits_per_s: float
    latency_s: float = 0.0
    peer_s: float = 0.0
    mean_s: float = 0.0
    mean_latency_s: float | None = None
    mean_byte_s: float = 0.0

    def seconds(self, num_bytes: float) -> float:
        """Time that bytes take."""
        return 8 * num_bytes / self.bits_per_s

    def round_s(self, num_ranks: int) -> float:
        """Time of a round without content in which all send to all."""
        return self.latency_s + max(0, num_ranks - 2) * self.peer_s

    def averaging_s(self, num_ranks: int, num_bytes: int) -> float:
        """Time to average gradients: each part in one round, then the means around a ring."""
        if not num_bytes:
            return 0.0
        sent = 2 * (num_ranks - 1) / num_ranks * num_bytes
        content_s = max(self.seconds(sent), sent * self.mean_byte_s)
        if self.mean_latency_s is None:  # software was not measured
            around_s = self.round_s(num_ranks) + (num_ranks - 1) * self.latency_s
        else:
            around_s = self.mean_s + num_ranks * self.mean_latency_s
        return content_s + around_s


@dataclass(frozen=True)
class Exchange:
    """What a rank sends in one step.

    Attributes:
        num_ranks: Number of ranks.
        row_bytes: Rows that the busiest link carries, with what asks for them and updates them.
        row_rounds: Rounds of these messages.
        dense_bytes: Bytes of dense gradients, which are averaged over ranks.
    """

    num_ranks: int
    row_bytes: float
    row_rounds: float
    dense_bytes: int

    def seconds(self, link: Link) -> float:
        """The time of a step's messages.

        Every step ends with a flag that all ranks agree on.
        """
        num = self.num_ranks
        if num == 1:
            return 0.0
        flag_s = 2 * math.ceil(math.log2(num)) * link.latency_s
        rows_s = link.seconds(self.row_bytes) + self.row_rounds * link.round_s(num)
        return link.averaging_s(num, self.dense_bytes) + rows_s + flag_s


@dataclass(frozen=True)
class StepTime:
    """Seconds of a step by part, and what they come to.

    Attributes:
        dense_s: Dense weights, with the making of batches.
        rows_s: Rows on this rank.
        exchange_s: Messages on the link, and waiting for other ranks.
        steps_per_epoch: Steps of an epoch.
        num_ranks: Ranks, a machine each.
        moves: What would change the time of a step → seconds of a step then.
    """

    dense_s: float
    rows_s: float
    exchange_s: float
    steps_per_epoch: int
    num_ranks: int
    moves: dict[str, float] = field(default_factory=dict)

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
            "moves": self.moves,
        }


def read_link(text: str, latency_us: float = 0.0) -> Link:
    """A link such as "25Gbit".

    Args:
        text: What it carries per second.
        latency_us: Microseconds of a round without content.
    """
    match = _LINK.fullmatch(text)
    if match is None or float(match[1]) == 0:
        raise ConfigError(f"{text!r} is not a link: write what it carries as 25Gbit or 100Mbit")
    if not latency_us >= 0:
        raise ConfigError(f"--latency-us must be >= 0, but got {latency_us}")
    return Link(float(match[1]) * _POWERS[match[2]], latency_us / 1e6)


def calibrated_link(link: Link | None, calibration: Calibration, num_ranks: int = 2) -> Link:
    """A link with what software adds to it; without a link, that between processes of one machine.

    Bytes take what the slower of link and software takes; latencies add.

    Args:
        link: The link between machines of one rank each; `None` if one machine has all ranks.
        calibration: The speed of a machine.
        num_ranks: Number of ranks.
    """
    two, many = calibration.of_ranks(2), calibration.of_ranks(max(2, num_ranks))
    busy = two if link is not None else many
    further = (many.round_s - two.round_s) / (many.num_ranks - 2) if num_ranks > 2 else 0.0
    own = Link(
        8 / max(busy.byte_s, 1e-15),
        two.round_s,
        max(0.0, further),
        mean_s=many.mean_s,
        mean_latency_s=0.0,
        mean_byte_s=many.mean_byte_s,
    )
    if link is None:
        return own
    return replace(
        own,
        bits_per_s=min(link.bits_per_s, own.bits_per_s),
        latency_s=link.latency_s + own.latency_s,
        mean_latency_s=link.latency_s,
    )


def busiest_bytes(traffic: Traffic) -> float:
    """Bytes per step that the link of the busiest owner carries in its busier direction.

    An owner sends rows and gets requests; both are in proportion to the requests it gets.
    """
    sent = traffic.bytes_per_step
    rows = sent.get("rows", 0.0)
    others = sum(sent.values()) - rows
    return max(rows * traffic.busiest + others, others * traffic.busiest + rows)


def moves_of(time: StepTime, exchange: Exchange, link: Link) -> dict[str, float]:
    """What would shorten a step, and the seconds it would then take; the best first."""
    without = time.total_s - exchange.seconds(link)  # ranks still wait for slower ones
    found = {
        "dense weights on a device twice as fast": time.total_s - time.dense_s / 2,
        "processors twice as fast for rows": time.total_s - time.rows_s / 2,
    }
    if exchange.num_ranks > 1:
        wider = replace(link, bits_per_s=2 * link.bits_per_s)
        of_means = None if link.mean_latency_s is None else link.mean_latency_s / 2
        nearer = replace(
            link, latency_s=link.latency_s / 2, peer_s=link.peer_s / 2, mean_latency_s=of_means
        )
        fewer = replace(exchange, row_bytes=exchange.row_bytes / 2)
        found["a link of twice the bits per second"] = without + exchange.seconds(wider)
        found["rounds of half the latency"] = without + exchange.seconds(nearer)
        if exchange.row_bytes:
            found["half the bytes of rows (int8 messages, wider bounds)"] = without + fewer.seconds(
                link
            )
    return dict(sorted(found.items(), key=lambda move: move[1]))
