"""The distinct ids of a batch, which occur again and again under a Zipf distribution.

The compiled path is one radix sort of (id, place), whose cost is the same for any order and skew of
the ids. It also lists the places of every id, by which gradients are summed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Int, Int32, Int64
from torch import Tensor

from outsize.kernels.arrays import addresses, array, empty, is_plain, scratch
from outsize.kernels.available import uses_triton
from outsize.kernels.compiled import compiled, is_worthwhile

LEAST_IDS = 4096
MOST_IDS_ON_CUDA = 1 << 30
_MOST_BITS = 31
_DIGIT_BITS = 13  # counters of a digit fit a first-level cache


@dataclass(frozen=True)
class Places:
    """The places of each distinct id: `order[starts[k] : starts[k + 1]]`, ascending, for the k-th.

    Attributes:
        order: All places, by id.
        starts: Start of each distinct id in `order`, and the end of the last.
    """

    order: Int32[Tensor, " n"]
    starts: Int32[Tensor, " _"]


@dataclass(frozen=True)
class Runs:
    """A list of ids, sorted on CUDA.

    Attributes:
        keys: The ids, ascending, of a `key_type`.
        order: The place of each in the list; equal ids are in the order of the list.
        runs: The number of distinct ids before each.
    """

    keys: Int[Tensor, " n"]
    order: Int64[Tensor, " n"]
    runs: Int32[Tensor, " n"]

    @property
    def num(self) -> int:
        """Number of ids."""
        return self.keys.shape[0]


@dataclass(frozen=True)
class Distinct:
    """The distinct ids of a list.

    Attributes:
        ids: Ascending, each once.
        inverse: For each id of the list, its index in `ids`.
        places: The places of each distinct id, if they were listed.
        runs: The sorted list, if it was sorted on CUDA.
    """

    ids: Int64[Tensor, " distinct"]
    inverse: Int64[Tensor, " n"]
    places: Places | None = None
    runs: Runs | None = None


def key_type(bound: int) -> torch.dtype:
    """The type of ids below a bound that is quickest to sort: each byte takes one pass."""
    return next(t for t in (torch.int16, torch.int32, torch.int64) if bound <= torch.iinfo(t).max)


def distinct(ids: Int64[Tensor, " n"], bound: int, *, reuse: bool = False) -> Distinct:
    """Find the distinct ids of a list.

    Args:
        ids: Ids from `0` to `bound - 1`, in any order.
        bound: An upper bound of all ids.
        reuse: Return tensors that the next such call of this thread overwrites.
    """
    n, bits = ids.shape[0], max(bound - 1, 1).bit_length()
    if bits <= _MOST_BITS and is_worthwhile(n, LEAST_IDS) and n < 1 << 31 and is_plain(ids):
        kernels = compiled("distinct.distinct_numba")
        if kernels is not None:
            return _by_sorting(kernels, ids.contiguous(), bits, reuse)
    if n < MOST_IDS_ON_CUDA and uses_triton(ids):
        from outsize.kernels.distinct.distinct_triton import distinct_by_triton

        return distinct_by_triton(ids.to(key_type(bound)))
    unique, inverse = torch.unique(ids, return_inverse=True)
    return Distinct(unique, inverse)


def offset_ids(
    columns: Sequence[Int64[Tensor, " n"]],
    bounds: Int64[Tensor, " columns"],
    offsets: Int64[Tensor, " columns"],
) -> Int64[Tensor, " _"] | None:
    """Ids plus the offset of their column, by example: all columns of the first, and so on.

    `None` if an id is out of its column's bounds, or there is no compiled kernel: the caller then
    checks and adds by torch.

    Args:
        columns: Ids, one column per table.
        bounds: Number of rows of each table.
        offsets: What to add to each column.
    """
    num = columns[0].shape[0] * len(columns)
    if not (is_worthwhile(num, LEAST_IDS) and is_plain(*columns)):
        return None
    if any(column.dtype is not torch.int64 for column in columns):
        return None
    kernels = compiled("distinct.distinct_numba")
    if kernels is None:
        return None
    out = torch.empty(num, dtype=torch.int64)
    read = [column.contiguous() for column in columns]
    given = (addresses(read), array(bounds), array(offsets))
    return out if kernels.add_offsets(*given, array(out)) else None


def _by_sorting(kernels: Any, ids: Int64[Tensor, " n"], bits: int, reuse: bool) -> Distinct:
    n = ids.shape[0]
    num_digits = -(-bits // _DIGIT_BITS)
    digit_bits = -(-bits // num_digits)
    counts = empty(num_digits, 1 << digit_bits, dtype=torch.int32).view("uint32")
    words = array(scratch("words", 2 * n, torch.int64)).view("uint64")
    unique = _vector("unique", n, torch.int64, reuse)
    inverse = _vector("inverse", n, torch.int64, reuse)
    order = _vector("order", n, torch.int32, reuse)
    starts = _vector("starts", n + 1, torch.int32, reuse)
    num = kernels.distinct_ids(
        array(ids), digit_bits, num_digits, counts, words[:n], words[n:],
        array(unique), array(inverse), array(order), array(starts),
    )  # fmt: skip
    return Distinct(unique[:num], inverse, Places(order, starts[: num + 1]))


def _vector(name: str, num: int, dtype: torch.dtype, reuse: bool) -> Tensor:
    return scratch(name, num, dtype) if reuse else torch.empty(num, dtype=dtype)
