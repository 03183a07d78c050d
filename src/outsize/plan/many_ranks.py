"""From the ranks that were simulated to as many as a run has.

The batch of a rank stays as it is, so a rank reads as many rows per step whatever the number of
ranks N is. What changes:

- *Rows of other ranks*: a share of 1 − 1/N of what a rank reads.
- *Hit rate*: a copy is valid until others have updated its row s + 1 times. If all N ranks read a
  row equally often and at random, each update is equally likely to be of any of them, so a rank
  reads the row (s + 1) / (N − 1) times on average before that, and the hit rate of a large cache is
  (s + 1) / (s + N). Reads that find no copy at all take a share of it that does not depend on N. So
  1 / hit rate is a straight line in N − 1, and a line through the simulated sizes is prolonged. In
  a short simulation few updates have been pushed yet, so the large cache's rate is the most.
- *Bytes of each kind*: a multiple of the rows of other ranks, and one of those that miss.
- *Time of rows*: a part that stays, and one per message, of which there is one per rank.
- *The busiest owner*: popular rows have one owner each, and every rank asks for them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from outsize.plan.reads import StepReads
from outsize.plan.traffic import Traffic


@dataclass(frozen=True)
class RuleError:
    """How far the rules are off where they can be checked: the largest size from the others.

    Attributes:
        num_ranks: The size that was predicted, and simulated as well.
        sent: Bytes predicted / simulated − 1.
        hit_rate: Hit rate predicted − simulated.
    """

    num_ranks: int
    sent: float
    hit_rate: float


def extrapolate(found: Sequence[Traffic], num_ranks: int, most_hits: float = 1.0) -> Traffic:
    """The traffic of more ranks than were simulated.

    Args:
        found: Traffic of two or more numbers of ranks, ascending, each rank with the same batch.
        num_ranks: The number of ranks, greater than all of those.
        most_hits: The hit rate at most, as `lasting_hit_rate` has it.
    """
    largest = found[-1]
    sizes = np.array([each.num_ranks for each in found], dtype=np.float64)
    steps = sizes * np.array([each.num_steps for each in found])
    reads = np.array([each.reads for each in found]) / steps
    remote = np.array([each.reads - each.local for each in found]) / steps
    rates = np.array([each.hit_rate for each in found])
    read = float(reads[-1])
    asked = read * (1 - 1 / num_ranks)
    rate = min(most_hits, hit_rate_of(sizes, rates, num_ranks))
    known = np.stack([remote, remote * (1 - rates)], axis=1)
    wanted = np.array([asked, asked * (1 - rate)])

    def per_step(totals: Sequence[int]) -> float:
        return max(0.0, _fitted(known, np.array(totals, dtype=np.float64) / steps, wanted))

    total = num_ranks * largest.num_steps
    sent = {
        kind: round(total * per_step([each.sent_bytes[kind] for each in found]))
        for kind in largest.sent_bytes
    }
    return replace(
        largest,
        sent_bytes=sent,
        reads=round(total * read),
        local=round(total * (read - asked)),
        hits=round(total * asked * rate),
        pushes=round(total * per_step([each.pushes for each in found])),
        evictions=round(total * per_step([each.evictions for each in found])),
        num_ranks=num_ranks,
        rows_s=_rising(sizes, np.array([each.rows_s for each in found]), num_ranks),
        simulated_ranks=[each.num_ranks for each in found],
    )


def rule_error(found: Sequence[Traffic]) -> RuleError:
    """What the rules say of the largest size, given the smaller ones, beside its simulation."""
    largest = found[-1]
    predicted = extrapolate(found[:-1], largest.num_ranks)
    sent, simulated = (sum(each.sent_bytes.values()) for each in (predicted, largest))
    off = sent / simulated - 1 if simulated else 0.0
    return RuleError(largest.num_ranks, off, predicted.hit_rate - largest.hit_rate)


def hit_rate_of(sizes: NDArray[np.float64], rates: NDArray[np.float64], num_ranks: int) -> float:
    """The hit rate of so many ranks, where 1 / hit rate is a straight line in their number.

    Args:
        sizes: Numbers of ranks that were simulated.
        rates: Their hit rates.
        num_ranks: The number of ranks asked for.
    """
    if rates.min() <= 0:
        return 0.0
    return 1.0 / _rising(sizes, 1.0 / rates, num_ranks)


def lasting_hit_rate(read_staleness: float, write_staleness: float, num_ranks: int) -> float:
    """The hit rate of a large cache in a long run, if all ranks read a row equally often.

    Others push a row's updates in lumps of `write_staleness` + 1, and a copy is valid until they
    exceed `read_staleness`.
    """
    if math.isinf(read_staleness) or math.isinf(write_staleness) or num_ranks == 1:
        return 1.0
    lump = write_staleness + 1
    hits = (read_staleness // lump + 1) * lump / (num_ranks - 1)
    return hits / (1 + hits)


def busiest_owner(reads: Sequence[StepReads], num_ranks: int) -> float:
    """How many times as many requests as the mean the busiest owner gets, on average over steps.

    Rows that the reading rank owns, and those of which it has a valid copy, are not left out.

    Args:
        reads: The reads of each step and rank.
        num_ranks: Number of ranks, each of which owns every n-th row.
    """
    ids = [part for step in reads for parts in step for part in parts if part.numel()]
    if not ids or num_ranks == 1:
        return 1.0
    load = torch.bincount(torch.cat(ids) % num_ranks, minlength=num_ranks).double()
    return float(load.max() / load.mean())


def _rising(sizes: NDArray[np.float64], values: NDArray[np.float64], size: int) -> float:
    """A straight line through some values, which does not fall, at another size."""
    slope = 0.0
    if len(sizes) > 1:
        slope = max(0.0, float(np.polyfit(sizes, values, 1)[0]))
    return float(values[-1] + slope * (size - sizes[-1]))


def _fitted(
    known: NDArray[np.float64], values: NDArray[np.float64], wanted: NDArray[np.float64]
) -> float:
    """A linear function of two numbers, fitted to some values, at another place."""
    factors, *_ = np.linalg.lstsq(known, values, rcond=None)
    ends = float(values[-1]) - float(known[-1] @ factors)  # through the largest size
    return float(wanted @ factors) + ends
