"""How rows travel if ranks own them by remainder (see `Shard`)."""

from __future__ import annotations

from jaxtyping import Bool, Float, Int64
from torch import Tensor

from outsize.contracts import Transport
from outsize.stores.wire import Wire, wire_for


class ShardTransport(Transport):
    """Rows of other owners travel, rounded by a wire format.

    Args:
        rank: This rank; its own rows are local.
        num_owners: Number of ranks that own rows, from rank 0 on.
        wire: The wire format of rows and gradients.
    """

    def __init__(self, rank: int, num_owners: int, wire: Wire) -> None:
        self._rank = rank
        self._num_owners = num_owners
        self._wire = wire

    def is_remote(self, ids: Int64[Tensor, " n"]) -> Bool[Tensor, " n"]:
        """Which rows have another owner."""
        return ids % self._num_owners != self._rank

    def bytes_per_row(self, dim: int) -> int:  # noqa: D102
        return wire_for(dim, self._wire).bytes_per_row(dim)

    def as_sent(self, vectors: Float[Tensor, "n dim"]) -> Float[Tensor, "n dim"]:  # noqa: D102
        return wire_for(vectors.shape[1], self._wire).rounded(vectors)
