"""Which segments of an item index are rewritten when rows are added or deleted.

Segments are kept in the order in which their rows were written. New rows become a segment of their
own. Where a segment has fewer than twice as many live rows as all after it, it and these become
one. So n rows are in at most log₃ n + 1 segments, and a write costs, averaged over many, O(log n)
times the rows that it brings. A segment with more dead rows than live ones is rewritten too, so an
index takes at most about twice the space of its live rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from outsize.search.segments import Rows, Segment


def merged(segments: Sequence[Segment]) -> list[Segment]:
    """Segments with the same live rows in the same order; those that are new have no name."""
    live = [_without_dead(segment) for segment in segments if segment.num_live]
    after = 0
    first = len(live)
    for place in reversed(range(len(live))):
        if after and live[place].num_live < 2 * after:
            first = place
        after += live[place].num_live
    return [*live[:first], _joined(live[first:])] if first < len(live) else live


def _without_dead(segment: Segment) -> Segment:
    """A segment, rewritten if more of its rows are dead than live."""
    return _joined([segment]) if 2 * segment.num_live < len(segment.rows) else segment


def _joined(segments: Sequence[Segment]) -> Segment:
    live = [segment.live_rows() for segment in segments]
    rows = Rows.joined(
        [segment.rows.take(which) for segment, which in zip(segments, live, strict=True)]
    )
    asked = torch.cat([segment.asked[which] for segment, which in zip(segments, live, strict=True)])
    return Segment("", rows, torch.ones(len(rows), dtype=torch.bool), asked)
