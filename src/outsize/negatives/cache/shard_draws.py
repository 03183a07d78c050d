"""Draws from a softmax over several shards, made of what each shard draws by itself.

With Zᵣ the partition of shard r, a shard drawn with chance Zᵣ / Σ Z and then an item drawn by that
shard is exactly an item drawn from all. Candidates of a shard are independent of each other, so the
i-th draw of a query takes the i-th candidate of the shard it falls on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float32, Int64
from torch import Tensor

from outsize.contracts import Shard
from outsize.kernels.ragged import Ragged
from outsize.kernels.softmax.draws import SoftmaxDraws
from outsize.negatives.cache.negative_cache import NegativeCache


@dataclass(frozen=True)
class Question:
    """What a rank asks every shard.

    Attributes:
        scaled: Its queries, multiplied by β.
        exclude: Keys that do not count for each of them.
        exclude_everywhere: Keys that do not count for any of them.
    """

    scaled: Float32[Tensor, "batch dim"]
    exclude: Ragged
    exclude_everywhere: Int64[Tensor, " m"]

    def tensors(self, kept_as: torch.dtype, shard: Shard) -> list[Tensor]:
        """What travels to a shard: queries as they are rounded anyway to meet items kept in this
        type, and of the lists the keys that are kept there.
        """
        is_exact = kept_as == torch.float32
        queries = self.scaled if is_exact else self.scaled.to(torch.bfloat16)
        lists = self.exclude
        if shard.count > 1:
            lists = lists.where((lists.values >= 0) & (lists.values % shard.count == shard.index))
        return [queries, lists.values, lists.sizes(), self.exclude_everywhere]

    @classmethod
    def of(cls, tensors: Sequence[Tensor]) -> Question:
        """What `tensors` gave on another rank."""
        queries, values, sizes, everywhere = tensors
        return cls(queries.float(), Ragged.from_sizes(values, sizes), everywhere)


def answer(
    shard: NegativeCache,
    asked: Sequence[Question],
    num: int,
    generator: torch.Generator,
    with_mean: bool,
) -> list[list[Tensor]]:
    """For each rank's queries the log-partition, candidates, their logits, and the mean if asked.

    One pass answers all ranks, unless items are excluded for all queries of one and not of another:
    then each has a pass of its own, since a list for every query would be as long as a batch.
    """
    everywhere = asked[0].exclude_everywhere
    is_joint = all(torch.equal(question.exclude_everywhere, everywhere) for question in asked)
    answers: list[list[Tensor]] = []
    for group in [asked] if is_joint else [[question] for question in asked]:
        drawn = shard.draw_rows(
            torch.cat([question.scaled for question in group]),
            num,
            generator,
            Ragged.stacked([question.exclude for question in group]),
            group[0].exclude_everywhere if len(group[0].exclude_everywhere) else None,
            with_mean,
        )
        found = [drawn.log_partition, drawn.rows, drawn.logits]
        if drawn.mean is not None:
            found.append(drawn.mean)
        sizes = [len(question.scaled) for question in group]
        answers += map(list, zip(*(values.split(sizes) for values in found), strict=True))
    return answers


def draw_from_shards(
    answers: Sequence[Sequence[Tensor]],
    rows_per_shard: int,
    log_weight: float,
    generator: torch.Generator,
) -> tuple[SoftmaxDraws, Float32[Tensor, "batch dim"] | None]:
    """Draws from all shards, and the mean over them if shards have given theirs.

    Args:
        answers: What `answer` says on each shard.
        rows_per_shard: Row j of shard r becomes row r · rows_per_shard + j.
        log_weight: log of how many items each held one stands for.
        generator: Decides which shard a draw falls on.
    """
    log_partitions, rows, logits, *means = (
        torch.stack(parts) for parts in zip(*answers, strict=True)
    )
    log_partition = log_partitions.logsumexp(dim=0) + log_weight
    shard = _draw_shards(log_partitions, rows.shape[2], generator).unsqueeze(0)
    row = rows.gather(0, shard).squeeze(0)
    is_drawn = torch.isfinite(log_partition).unsqueeze(1) & (row >= 0)
    row = torch.where(is_drawn, row + rows_per_shard * shard.squeeze(0), -1)
    logit = torch.where(is_drawn, logits.gather(0, shard).squeeze(0) + log_weight, -torch.inf)
    mean = _mean(log_partitions, means[0]) if means else None
    return SoftmaxDraws(row, logit, log_partition), mean


def _draw_shards(
    log_partitions: Float32[Tensor, "shards batch"], num: int, generator: torch.Generator
) -> Int64[Tensor, "batch num"]:
    """A shard for each draw, by Gumbel-Max; never one that has nothing while another has."""
    logits = log_partitions.double().T.unsqueeze(1)
    noise = logits.new_empty(len(logits), num, len(log_partitions))
    noise.exponential_(generator=generator).log_()
    return torch.where(logits == -torch.inf, logits, logits - noise).argmax(dim=2)


def _mean(
    log_partitions: Float32[Tensor, "shards batch"], means: Float32[Tensor, "shards batch dim"]
) -> Float32[Tensor, "batch dim"]:
    """The mean over all shards; 0 for a query that has nothing."""
    shares = log_partitions.softmax(dim=0)
    shares = torch.where(torch.isfinite(shares), shares, 0.0)
    return torch.einsum("rb,rbd->bd", shares, means)
