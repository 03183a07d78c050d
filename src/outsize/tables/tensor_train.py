"""Tensor-train tables (TT-Rec, Yin et al. 2021): a table as a product of small cores.

With the digits i₁ … i_c of id i, and dim = dim₁ ⋯ dim_c,

    T[i] = G₁[i₁] · G₂[i₂] ⋯ G_c[i_c],     G_k[i_k] of shape (r_{k-1}, dim_k, r_k), r₀ = r_c = 1,

where each product contracts over a rank r, and the factors of dim are flattened into one axis.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

from jaxtyping import Float, Int64
from torch import Tensor, nn

from outsize.contracts import EmbeddingTable
from outsize.errors import ConfigError
from outsize.spec import Budget, TableSpec
from outsize.tables.digits import balanced_bases, split_digits
from outsize.tables.factors import equal_std, factor_stds, fresh_factor
from outsize.tables.sizing import Cost, largest_size

_DEFAULT_CORES = 3


class TensorTrainTable(EmbeddingTable):
    """A vector is the product of one slice of each core.

    A look-up gathers one slice of each core per id, so its memory grows with the square of the
    rank.

    Args:
        spec: The table.
        rank_sum: Sum of the ranks between the cores. They differ by at most 1, larger ones first,
            but none is larger than an exact table needs.
        num_cores: Number of cores, at least 2; c above.
        seed: Seed of the initial cores.
        papers_init: Draw normal cores whose products have the variance that TT-Rec aims for,
            1 / (3 · num_rows), instead of the scale of the spec.
    """

    def __init__(
        self,
        spec: TableSpec,
        *,
        rank_sum: int,
        num_cores: int = _DEFAULT_CORES,
        seed: int = 0,
        papers_init: bool = False,
    ) -> None:
        super().__init__(spec)
        _require_cores(spec, num_cores)
        self.rank_sum = rank_sum
        self.bases = balanced_bases(spec.num_rows, num_cores)
        self.dims = even_factors(spec.dim, num_cores)
        self.ranks = _ranks(self.bases, self.dims, rank_sum)
        num_terms = math.prod(self.ranks)
        stds = factor_stds(spec, num_cores, num_terms)
        if papers_init:
            stds = [equal_std((3 * spec.num_rows) ** -0.5, num_cores, num_terms)] * num_cores
        self.cores = nn.ParameterList(
            fresh_factor(
                spec, base, width, std, seed, f"core {j}", "normal" if papers_init else None
            )
            for j, (base, width, std) in enumerate(
                zip(self.bases, _slice_sizes(self.dims, self.ranks), stds, strict=True)
            )
        )

    @classmethod
    def within(  # noqa: D102
        cls, spec: TableSpec, budget: Budget, *, seed: int = 0, **options: Any
    ) -> TensorTrainTable:
        num_cores = options.get("num_cores", _DEFAULT_CORES)
        _require_cores(spec, num_cores)
        bases, dims = balanced_bases(spec.num_rows, num_cores), even_factors(spec.dim, num_cores)

        def cost(rank_sum: int) -> Cost:
            widths = _slice_sizes(dims, _ranks(bases, dims, rank_sum))
            return Cost(sum(base * width for base, width in zip(bases, widths, strict=True)))

        rank_sum = largest_size(
            "tensor-train",
            spec,
            budget,
            cost,
            least=num_cores - 1,
            most=(num_cores - 1) * max(_exact_ranks(bases, dims)),
        )
        return cls(spec, rank_sum=rank_sum, seed=seed, **options)

    def settings(self) -> dict[str, Any]:  # noqa: D102
        return {"rank_sum": self.rank_sum, "num_cores": len(self.bases)}

    def lookup(self, ids: Int64[Tensor, " n"]) -> Float[Tensor, "n dim"]:  # noqa: D102
        digits = split_digits(ids, self.bases[::-1])[::-1]
        slices = [core.index_select(0, i) for core, i in zip(self.cores, digits, strict=True)]
        num_ids = ids.shape[0]
        vectors: Tensor = slices[0].view(num_ids, self.dims[0], self.ranks[0])
        for matrix, dim, (before, after) in zip(
            slices[1:], self.dims[1:], pairwise([*self.ranks, 1]), strict=True
        ):
            wider = vectors @ matrix.view(num_ids, before, dim * after)
            vectors = wider.view(num_ids, vectors.shape[1] * dim, after)
        return vectors.squeeze(2)


def even_factors(number: int, num_factors: int) -> list[int]:
    """Factor a number into integers with the smallest sum, larger ones first, padded with 1."""
    if num_factors == 1:
        return [number]
    divisors = [d for d in range(1, number + 1) if number % d == 0]
    choices = ([d, *even_factors(number // d, num_factors - 1)] for d in divisors)
    return sorted(min(choices, key=sum), reverse=True)


def _require_cores(spec: TableSpec, num_cores: int) -> None:
    if num_cores < 2:
        raise ConfigError(f"table {spec.name!r}: num_cores must be >= 2, but got {num_cores}")


def _exact_ranks(bases: list[int], dims: list[int]) -> list[int]:
    """The ranks with which a tensor train can represent any table."""
    sizes = [base * dim for base, dim in zip(bases, dims, strict=True)]
    return [min(math.prod(sizes[:j]), math.prod(sizes[j:])) for j in range(1, len(sizes))]


def _ranks(bases: list[int], dims: list[int], rank_sum: int) -> list[int]:
    """The ranks between the cores, none larger than an exact table needs."""
    exact = _exact_ranks(bases, dims)
    share, more = divmod(rank_sum, len(exact))
    return [min(share + (j < more), most) for j, most in enumerate(exact)]


def _slice_sizes(dims: list[int], ranks: list[int]) -> list[int]:
    """The size of one digit's slice of each core."""
    sides = pairwise([1, *ranks, 1])
    return [dim * before * after for dim, (before, after) in zip(dims, sides, strict=True)]
