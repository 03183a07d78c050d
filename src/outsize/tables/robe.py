"""Random offset block embedding (ROBE; Desai, Chou and Shrivastava, MLSys 2022).

All vectors consist of blocks of one circular array Z of P numbers:

    block j of T[i] = ± Z[(h_j(i) + 0 … w - 1) mod P]

The array uses the budget exactly.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from outsize.contracts import EmbeddingTable
from outsize.hashing import draw_hashes, hash_ids, hash_signs
from outsize.kernels.compositional.pieces import Source, composed
from outsize.kernels.compositional.pointers import HashedPointers
from outsize.spec import Budget, TableSpec
from outsize.tables.columns import column_widths, columns_of
from outsize.tables.sizing import Cost, hash_bytes, largest_size
from outsize.tables.weights import fresh_weight


class RobeTable(EmbeddingTable):
    """Each block of a vector is a slice of one shared array; slices may overlap.

    Args:
        spec: The table.
        size: Length of the array.
        columns: Blocks per vector; 4 by default.
        signs: Multiply each block by a random sign.
        seed: Seed of the hash functions and of the initial values.
    """

    def __init__(
        self,
        spec: TableSpec,
        *,
        size: int,
        columns: int | None = None,
        signs: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__(spec)
        columns = columns_of(spec, columns)
        self.size = size
        self.signs = signs
        self.widths = tuple(column_widths(spec.dim, columns))
        values = fresh_weight(spec, size, 1, spec.init.std_for(spec.dim), seed)
        self.weight = nn.Parameter(values.detach().flatten())
        self.register_buffer("hashes", draw_hashes(columns, seed))
        self.hashes: Tensor

    @classmethod
    def within(  # noqa: D102
        cls, spec: TableSpec, budget: Budget, *, seed: int = 0, **options: Any
    ) -> RobeTable:
        columns = columns_of(spec, options.get("columns"))
        size = largest_size(
            "robe",
            spec,
            budget,
            lambda size: Cost(size, hash_bytes(columns)),
            least=column_widths(spec.dim, columns)[0],
            most=spec.num_rows * spec.dim,
        )
        return cls(spec, size=size, seed=seed, **options)

    def settings(self) -> dict[str, Any]:  # noqa: D102
        return {"size": self.size, "columns": len(self.widths), "signs": self.signs}

    def lookup(self, ids: Int64[Tensor, " n"]) -> Float[Tensor, "n dim"]:  # noqa: D102
        source = Source(HashedPointers(self.hashes, self.size), 1, (0,) * len(self.widths))
        vectors = composed(self.weight, ids, self.widths, [source], signed=self.signs)
        if vectors is not None:
            return vectors
        starts = hash_ids(ids, self.hashes, self.size)
        places = torch.cat(
            [
                starts[:, j, None] + torch.arange(width, device=ids.device)
                for j, width in enumerate(self.widths)
            ],
            dim=1,
        )
        vectors = self.weight.index_select(0, places.flatten() % self.size).view(places.shape)
        return vectors * self._signs(ids).to(vectors.dtype) if self.signs else vectors

    def _signs(self, ids: Int64[Tensor, " n"]) -> Int64[Tensor, "n dim"]:
        signs = hash_signs(ids, self.hashes)
        repeated = [signs[:, j, None].expand(-1, width) for j, width in enumerate(self.widths)]
        return torch.cat(repeated, dim=1)
