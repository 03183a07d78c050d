"""Draws from a softmax over several shards, combined from the draws of each shard.

Let Zᵣ be the partition function of shard r. To draw a shard with probability Zᵣ / Σ Z, then an item
of that shard, is an exact draw from all items. The candidates of a shard are independent, so the
i-th draw of a query takes the i-th candidate of the drawn shard.

Systematic draws are systematic at both levels: shards are drawn with equally spaced numbers, and of
the k equally spaced candidates of a shard, the m draws that it gets take every k/m-th.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float32, Int64
from torch import Tensor

from outsize.contracts import Shard
from outsize.errors import DataError
from outsize.kernels.ragged import Ragged
from outsize.kernels.softmax.draws import SoftmaxDraws
from outsize.kernels.softmax.inversion import pick, systematic_uniforms
from outsize.negatives.cache.contract import DrawOptions
from outsize.negatives.cache.negative_cache import NegativeCache
from outsize.ranks.collectives import RankGroup
from outsize.ranks.tensor_swaps import swap_tensors


@dataclass(frozen=True)
class DrawRequest:
    """The queries that a rank sends to every shard.

    Attributes:
        scaled: The queries, multiplied by β.
        exclude: Keys to mask per query.
        exclude_everywhere: Keys to mask for all queries.
    """

    scaled: Float32[Tensor, "batch dim"]
    exclude: Ragged
    exclude_everywhere: Int64[Tensor, " m"]

    def tensors(self, stored_as: torch.dtype, shard: Shard) -> list[Tensor]:
        """The message to a shard.

        Queries are sent in bfloat16 unless items are stored as float32, since they are scored in
        that precision anyway. Of the keys per query, only those that the shard owns are sent.
        """
        is_exact = stored_as == torch.float32
        queries = self.scaled if is_exact else self.scaled.to(torch.bfloat16)
        lists = self.exclude
        if shard.count > 1:
            lists = lists.where((lists.values >= 0) & (lists.values % shard.count == shard.index))
        return [queries, lists.values, lists.sizes(), self.exclude_everywhere]

    @classmethod
    def from_tensors(cls, tensors: Sequence[Tensor]) -> DrawRequest:
        """The request behind a message that another rank built with `tensors`."""
        queries, values, sizes, everywhere = tensors
        return cls(queries.float(), Ragged.from_sizes(values, sizes), everywhere)


def exchange_requests(
    ranks: RankGroup,
    request: DrawRequest,
    stored_as: torch.dtype,
    options: DrawOptions,
    facts: str,
) -> list[DrawRequest]:
    """Send this rank's request to every rank, and receive theirs.

    Args:
        ranks: The ranks that share the cache.
        request: The request.
        stored_as: The dtype of stored vectors.
        options: How items are drawn; what shards need of it is equal on all ranks.
        facts: What else must be equal on all ranks.
    """
    notes = [options.num, int(options.with_mean), int(options.systematic)]
    shards = (Shard(rank, ranks.size) for rank in range(ranks.size))
    sent = [request.tensors(stored_as, shard) for shard in shards]
    received, others = swap_tensors(ranks, sent, notes, "a draw of items", facts)
    for rank, other in enumerate(others):
        if other != notes:
            raise DataError(
                f"rank {rank} draws {other[0]} items per query, with_mean={bool(other[1])}, "
                f"systematic={bool(other[2])}, but rank {ranks.rank} draws {options.num}, "
                f"with_mean={options.with_mean}, systematic={options.systematic}: all must agree"
            )
    return [DrawRequest.from_tensors(tensors) for tensors in received]


def draw_candidates(
    shard: NegativeCache,
    requests: Sequence[DrawRequest],
    options: DrawOptions,
    generator: torch.Generator,
) -> list[list[Tensor]]:
    """Draw from one shard for the queries of all ranks.

    One pass over the shard answers all requests if their `exclude_everywhere` are equal. Otherwise
    each request gets its own pass, since a list per query would be as long as a batch.

    Returns:
        For each request the log-partition, the candidates, their logits, and with `with_mean` the
        mean embedding.
    """
    everywhere = requests[0].exclude_everywhere
    is_joint = all(torch.equal(request.exclude_everywhere, everywhere) for request in requests)
    answers: list[list[Tensor]] = []
    for group in [requests] if is_joint else [[request] for request in requests]:
        scaled = torch.cat([request.scaled for request in group])
        lists = Ragged.stacked([request.exclude for request in group])
        keys = group[0].exclude_everywhere
        asked = replace(options, exclude=lists, exclude_everywhere=keys if len(keys) else None)
        drawn = shard.draw_rows(scaled, asked, generator)
        found = [drawn.log_partition, drawn.rows, drawn.logits]
        if drawn.mean is not None:
            found.append(drawn.mean)
        sizes = [len(request.scaled) for request in group]
        answers += map(list, zip(*(values.split(sizes) for values in found), strict=True))
    return answers


def combine_draws(
    answers: Sequence[Sequence[Tensor]],
    rows_per_shard: int,
    log_weight: float,
    generator: torch.Generator,
    systematic: bool = False,
) -> SoftmaxDraws:
    """Combine the candidates of all shards into exact draws from all items.

    Args:
        answers: The answers of `draw_candidates`, one per shard.
        rows_per_shard: Row j of shard r becomes row r · rows_per_shard + j.
        log_weight: log of how many items each held item stands for.
        generator: Draws the shards.
        systematic: Whether the candidates are systematic draws.

    Returns:
        The draws, with the mean embedding over all shards if the answers have one.
    """
    log_partitions, rows, logits, *means = (
        torch.stack(parts) for parts in zip(*answers, strict=True)
    )
    log_partition = log_partitions.logsumexp(dim=0) + log_weight
    draw_shards = _systematic_shards if systematic else _draw_shards
    shard = draw_shards(log_partitions, rows.shape[2], generator)
    if systematic:
        place = _every_nth(shard, len(rows)).expand_as(rows)
        rows, logits = rows.gather(2, place), logits.gather(2, place)
    shard = shard.unsqueeze(0)
    row = rows.gather(0, shard).squeeze(0)
    is_drawn = torch.isfinite(log_partition).unsqueeze(1) & (row >= 0)
    row = torch.where(is_drawn, row + rows_per_shard * shard.squeeze(0), -1)
    logit = torch.where(is_drawn, logits.gather(0, shard).squeeze(0) + log_weight, -torch.inf)
    mean = _mean(log_partitions, means[0]) if means else None
    return SoftmaxDraws(row, logit, log_partition, mean)


def _draw_shards(
    log_partitions: Float32[Tensor, "shards batch"], num: int, generator: torch.Generator
) -> Int64[Tensor, "batch num"]:
    """Draw a shard per draw by Gumbel-Max; an empty shard only if all are empty."""
    logits = log_partitions.double().T.unsqueeze(1)
    noise = logits.new_empty(len(logits), num, len(log_partitions))
    noise.exponential_(generator=generator).log_()
    return torch.where(logits == -torch.inf, logits, logits - noise).argmax(dim=2)


def _systematic_shards(
    log_partitions: Float32[Tensor, "shards batch"], num: int, generator: torch.Generator
) -> Int64[Tensor, "batch num"]:
    """Draw a shard per draw with equally spaced numbers; shard 0 if all are empty."""
    uniforms = systematic_uniforms(log_partitions.shape[1], num, generator)
    return pick(log_partitions.T.contiguous(), uniforms).clamp_min(0)


def _every_nth(shard: Int64[Tensor, "batch num"], num_shards: int) -> Int64[Tensor, "1 batch num"]:
    """The candidate of its shard that each draw takes: of m draws, the j-th takes j·num/m."""
    num = shard.shape[1]
    is_from = shard.unsqueeze(2) == torch.arange(num_shards, device=shard.device)
    counts = is_from.sum(dim=1).gather(1, shard)
    turn = is_from.cumsum(dim=1).gather(2, shard.unsqueeze(2)).squeeze(2) - 1
    return (turn * num // counts.clamp_min(1)).unsqueeze(0)


def _mean(
    log_partitions: Float32[Tensor, "shards batch"], means: Float32[Tensor, "shards batch dim"]
) -> Float32[Tensor, "batch dim"]:
    """The mean embedding over all shards; 0 for a query whose items are all masked."""
    shares = log_partitions.softmax(dim=0)
    shares = torch.where(torch.isfinite(shares), shares, 0.0)
    return torch.einsum("rb,rbd->bd", shares, means)
