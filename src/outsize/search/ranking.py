"""Exact search over the segments of an item index."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float32, Int64
from torch import Tensor

from outsize.kernels.softmax.best_items import top_items
from outsize.search.segments import Segment

_QUERIES_PER_CHUNK = 1024


def best_rows(
    segments: Sequence[Segment], queries: Float32[Tensor, "q dim"], k: int
) -> tuple[Int64[Tensor, "q k"], Float32[Tensor, "q k"]]:
    """The rows of the `k` highest scores of each query, highest first, and those scores.

    Rows are counted over all segments. Of equal scores, the row that was written first comes first.
    Where there are fewer than `k` live rows, or a query is not finite, rows are −1 and scores −inf.
    """
    parts = [_best_of_chunk(segments, part, k) for part in queries.split(_QUERIES_PER_CHUNK)]
    if not parts:
        return torch.zeros(0, k, dtype=torch.int64), torch.zeros(0, k)
    return torch.cat([rows for rows, _ in parts]), torch.cat([scores for _, scores in parts])


def _best_of_chunk(
    segments: Sequence[Segment], queries: Float32[Tensor, "q dim"], k: int
) -> tuple[Tensor, Tensor]:
    rows = [torch.full((len(queries), k), -1, dtype=torch.int64)]
    scores = [torch.full((len(queries), k), -torch.inf)]
    first = 0
    for segment in segments:
        found, their = top_items(queries, segment.scored, min(k, len(segment.rows)))
        rows.append(torch.where(found < 0, -1, found + first))
        scores.append(their)
        first += len(segment.rows)
    return ordered(torch.cat(rows, dim=1), torch.cat(scores, dim=1), k)


def ordered(
    rows: Int64[Tensor, "q n"], scores: Float32[Tensor, "q n"], k: int
) -> tuple[Int64[Tensor, "q k"], Float32[Tensor, "q k"]]:
    """The `k` best of some rows by score; of equal scores, the lower row comes first."""
    last = torch.iinfo(torch.int64).max
    order = torch.where(rows < 0, last, rows).argsort(dim=1)
    rows, scores = rows.gather(1, order), scores.gather(1, order)
    order = scores.argsort(dim=1, descending=True, stable=True)[:, :k]
    return rows.gather(1, order), scores.gather(1, order)
