"""Counts of reads, pushes and bytes over all ranks, as metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from outsize.contracts import RowStore
from outsize.contracts.messages import BYTE_KINDS
from outsize.ranks.collectives import gather_values


def add_counts(store: RowStore | None, known: Mapping[str, Any]) -> dict[str, Any]:
    """Add what the stores of all ranks have counted since the last call; entered by all ranks.

    Args:
        store: This rank's; `None` for none.
        known: What an earlier call returned, or nothing.
    """
    counts = None if store is None else store.take_counts()
    if counts is None:
        return dict(known)
    total = dict(known)
    for other in gather_values(asdict(counts)):
        sent, lag = other.pop("sent_bytes"), other.pop("largest_lag")
        for name, number in {**other, **{f"sent_{k}": size for k, size in sent.items()}}.items():
            if number is not None:
                total[name] = total.get(name, 0) + number
        if lag is not None:
            total["largest_lag"] = max(lag, total.get("largest_lag", lag))
    return total


def as_metrics(counts: Mapping[str, Any]) -> dict[str, Any]:
    """Counts as metrics of a log line; empty if nothing was counted.

    `sent_…` are bytes sent to other ranks, by kind; `hit_rate` is the share of rows of other ranks
    that were read from a valid copy; `exchange_s` is summed over ranks, and so is `wait_s`, if
    exchanges overlap with the computation.
    """
    if not counts:
        return {}
    names = [name for name in counts if name.startswith("sent_")]
    metrics: dict[str, Any] = {name: counts[name] for name in sorted(names)}
    remote = counts["reads"] - counts["local"]
    metrics["hit_rate"] = counts["hits"] / remote if remote else 0.0
    metrics |= {name: counts[name] for name in ("reads", "pushes", "evictions")}
    metrics["largest_lag"] = counts.get("largest_lag")
    for name in ("exchange_s", "wait_s"):
        if name in counts:
            metrics[name] = round(counts[name], 4)
    return metrics


def sent_bytes(lines: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Bytes sent over a whole log, by kind."""
    return {kind: sum(line.get(f"sent_{kind}", 0) for line in lines) for kind in BYTE_KINDS}
