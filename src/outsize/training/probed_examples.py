"""Finding the examples that have ids of a block."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from outsize.contracts import Bag
from outsize.ranks.collectives import check_stop_together, gather_values, rank, world_size
from outsize.tables import ProbeBlock

Examples = TypeVar("Examples")
BATCHES_PER_CHUNK = 16


def touching(
    features: Sequence[tuple[str, Tensor | Bag]], block: ProbeBlock
) -> Int64[Tensor, " _"]:
    """The examples with an id of a block, as places in the batch.

    Args:
        features: For each feature its table, and `(B,)` ids or bags.
        block: The block.
    """
    found = [_any_of(ids, block.contains(table, _values(ids))) for table, ids in features]
    return torch.stack(found).any(dim=0).nonzero().flatten()


def _values(ids: Tensor | Bag) -> Tensor:
    return ids if isinstance(ids, Tensor) else ids.values


def _any_of(ids: Tensor | Bag, accepted: Bool[Tensor, "..."]) -> Bool[Tensor, " batch"]:
    """Which bags have an accepted id."""
    if isinstance(ids, Tensor) or ids.offsets is None:
        return accepted if accepted.dim() == 1 else accepted.any(dim=1)
    before = torch.cat((accepted.new_zeros(1, dtype=torch.int64), accepted.cumsum(0)))
    ends = torch.cat((ids.offsets[1:], ids.offsets.new_tensor([accepted.numel()])))
    return before[ends] > before[ids.offsets]


def matching_batches(
    read: Callable[[int, int], Examples],
    find: Callable[[Examples], Int64[Tensor, " _"]],
    num_examples: int,
    batch_size: int,
    share: float,
    device: torch.device,
) -> Iterator[tuple[Examples, Int64[Tensor, " _"], int]]:
    """Batches of the examples that match, of a rank; every rank gets as many.

    Of every chunk the last part is read alone, so that examples which are not used cost nothing. If
    any rank is asked to stop, all raise `StopRequested` between chunks.

    Args:
        read: Reads examples `low … high − 1`.
        find: The places of matching ones among them.
        num_examples: Examples to look through, over all ranks.
        batch_size: Most examples of a batch, over all ranks.
        share: Share of the examples to read, 0 to 1.
        device: Where messages to other ranks are made.

    Yields:
        What was read, the places in it that make up this rank's part of a batch, and the size of
        the batch over all ranks.
    """
    chunk = batch_size * BATCHES_PER_CHUNK
    for first in range(0, num_examples, chunk):
        check_stop_together(device)
        stop = min(first + chunk, num_examples)
        size = _part(stop - first, share)
        low, high = (stop - size + size * r // world_size() for r in (rank(), rank() + 1))
        found = read(low, high)
        rows = find(found)
        sizes: list[int] = gather_values(rows.numel())
        num_batches = -(-sum(sizes) // batch_size)
        for i in range(num_batches):
            cuts = [[n * j // num_batches for j in (i, i + 1)] for n in sizes]
            num_global = sum(after - before for before, after in cuts)
            if num_global:
                yield found, rows[slice(*cuts[rank()])], num_global


def _part(size: int, share: float) -> int:
    """A share of a number of examples, rounded; no fewer than one for each rank."""
    return min(size, max(world_size(), int(size * share + 0.5)))
