"""Which rows each owner keeps, and which lines go to which owner."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Int64
from torch import Tensor

from outsize.errors import ConfigError
from outsize.kernels.exchange.routes import quotients


@dataclass(frozen=True)
class Shard:
    """One shard of the rows of a store: every `count`-th store id, starting at `index`.

    Adjacent ids have different owners, so that a run of popular ids is spread over all of them.

    Attributes:
        index: Number of the shard; a shard with `index >= count` is empty.
        count: Number of shards.
    """

    index: int = 0
    count: int = 1

    def __post_init__(self) -> None:
        if self.index < 0 or self.count < 1:
            raise ConfigError(
                f"a shard needs index >= 0 and count >= 1, but got {self.index} of {self.count}"
            )

    def num_below(self, stop: int) -> int:
        """Number of its store ids below `stop`."""
        if self.index >= self.count:
            return 0
        return max(0, -(-(stop - self.index) // self.count))

    def positions(self, ids: Int64[Tensor, " n"]) -> Int64[Tensor, " n"]:
        """The positions of its store ids within the shard, which is in ascending order."""
        return quotients(ids, self.count)

    def id_at(self, position: int) -> int:
        """The store id at a position."""
        return position * self.count + self.index


def places_by_owner(owners: Int64[Tensor, " n"], num_ranks: int) -> list[Int64[Tensor, " _"]]:
    """For each rank, the ascending positions of the lines it owns, given each line's owner."""
    order = owners.argsort(stable=True)
    return list(order.split(torch.bincount(owners, minlength=num_ranks).tolist()))
