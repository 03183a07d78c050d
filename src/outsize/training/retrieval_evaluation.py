"""Ranking all items for every query of a split."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Float, Float32, Int64
from torch import Tensor

from outsize.data import RetrievalData
from outsize.data.item_lists import ItemLists
from outsize.kernels.softmax.best_items import top_items
from outsize.kernels.softmax.draws import ScoredItems, draw_from_softmax
from outsize.metrics import RankingMetrics
from outsize.models import RetrievalModel
from outsize.negatives.contract import encoded_at_once
from outsize.ranks.collectives import (
    check_stop_together,
    gather_rows,
    rank,
    sum_over_ranks,
    world_size,
)
from outsize.training.config import RunConfig
from outsize.training.metric_names import Metrics

QUERIES_PER_CHUNK = 1024
Encode = Callable[[Int64[Tensor, " n"]], Tensor]
Record = Callable[[Int64[Tensor, " n"], Int64[Tensor, "n k"], Float32[Tensor, "n k"]], None]
"""Told the rows of some queries, their best items, and the scores of these."""


def items_at_once(config: RunConfig, num_items: int) -> int:
    """How many items of a run are encoded at a time without gradients: see `encoded_at_once`."""
    assert config.negatives is not None
    batch = config.train.batch_size
    num_drawn = config.negatives.items_per_step(batch, num_items)
    return encoded_at_once(config.negatives.chunk_size or batch + num_drawn)


@torch.no_grad()
def encode_corpus(
    encode: Encode, num_items: int, chunk_size: int, device: torch.device
) -> Float32[Tensor, "num_items dim"]:
    """Encode all items, sharing the work among ranks; entered by all ranks.

    Every rank encodes equally many, the last ones some items twice if necessary, because reading
    rows may be collective. If a stop is requested, it raises `StopRequested` between chunks.
    """
    share = -(-num_items // world_size())
    rows = torch.arange(share, device=device) + rank() * share
    parts: list[Tensor] = []
    for part in rows.clamp(max=num_items - 1).split(chunk_size):
        check_stop_together(device)
        parts.append(encode(part).float())
    return torch.cat(gather_rows(torch.cat(parts)))[:num_items].contiguous()


def encode_items(model: RetrievalModel, data: RetrievalData, config: RunConfig) -> Tensor:
    """The vectors of all items of a run, on the CPU."""
    return encode_corpus(
        lambda rows: model.encode_items(data.items.take(rows)),
        data.items.num_rows,
        items_at_once(config, data.items.num_rows),
        torch.device("cpu"),
    )


@torch.no_grad()
def rank_relevant(
    relevant: ItemLists,
    known: ItemLists,
    encode_queries: Encode,
    items: Float32[Tensor, "num_items dim"],
    beta: Float[Tensor, ""],
    metrics: RankingMetrics,
    chunk_size: int = QUERIES_PER_CHUNK,
    record: Record | None = None,
    depth: int = 0,
    grades: Int64[Tensor, " pairs"] | None = None,
) -> Metrics:
    """Rank all items for each query that has relevant items; entered by all ranks.

    "loss" is the mean over relevant pairs of −log p⁺ in the softmax over all items but those known
    or relevant.

    Args:
        relevant: The relevant items of each query.
        known: The items to leave out of each query's ranking.
        encode_queries: Rows of queries → their vectors.
        items: All items, encoded.
        beta: Inverse temperature of the softmax.
        metrics: What to measure, without anything in it yet.
        chunk_size: Queries at a time.
        record: Told what was found for the queries of this rank.
        depth: Items per query to find, if more than the metrics need.
        grades: How relevant each item of `relevant.values` is; all alike by default. Items below
            the `min_grade` of the metrics count for NDCG only.
    """
    num_places = max(metrics.num_places, depth)
    asked = relevant.counts().nonzero().flatten()
    scored = ScoredItems(items, None, torch.zeros(items.shape[0], device=items.device))
    generator = torch.Generator(items.device)  # nothing is drawn
    loss = torch.zeros(2, dtype=torch.float64, device=items.device)
    for group in asked.split(chunk_size * world_size()):
        check_stop_together(items.device)
        rows = group[rank() :: world_size()]  # encoded even if empty: ranks encode together
        queries = encode_queries(rows).float()
        if not rows.shape[0]:
            continue
        seen, wanted = known.of(rows), relevant.of(rows)
        ranked, scores = top_items(queries, scored, num_places, seen)
        if record is not None:
            record(rows, ranked, scores)
        values, owner = wanted.values, wanted.lines()
        levels = None
        if grades is not None:
            shifts = relevant.offsets[rows] - wanted.offsets[:-1]
            levels = grades[torch.arange(len(values), device=grades.device) + shifts[owner]]
        metrics.add(ranked, values, wanted.offsets[:-1], levels)
        masked = seen.concatenate_lists(wanted)
        others = draw_from_softmax(queries * beta, scored, 0, generator, masked).log_partition
        own = beta * (queries[owner] * items[values]).sum(dim=1)
        losses = F.softplus(others[owner].double() - own.double())
        if levels is not None:
            losses = losses[levels >= metrics.min_grade]
        loss += torch.stack((losses.sum(), loss.new_tensor(len(losses))))
    total, count = sum_over_ranks(loss).tolist()
    return {"loss": total / count, **metrics.gather().result()}
