"""Gather the distinct rows of a batch into one line per id, or one per bag of ids.

The gradient of a row is the sum over its occurrences in the batch. The compiled path sums them by
row, in the order of the batch and in blocks of fixed size: the result does not depend on the number
of threads, and differs from that of torch by the rounding of float32 sums only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Float32, Int32, Int64
from torch import Tensor

from outsize.kernels.arrays import array, empty, is_plain_float, scratch
from outsize.kernels.available import uses_triton
from outsize.kernels.compiled import compiled, is_worthwhile
from outsize.kernels.distinct.distinct import LEAST_IDS, Distinct, Places
from outsize.kernels.threads import num_parts, run_parts

BLOCK = 2048  # occurrences that one thread sums in order
_LEAST_NUMBERS = 1 << 15  # per thread


@dataclass(frozen=True)
class Bags:
    """Bags of ids, for sums.

    Attributes:
        edges: Start of each bag in the list of ids, and the end of the last.
        scales: A factor per id; `None` for 1.
    """

    edges: Int64[Tensor, " edges"]
    scales: Float32[Tensor, " n"] | None = None

    @property
    def num_bags(self) -> int:
        """Number of bags."""
        return self.edges.shape[0] - 1

    def lines(self) -> Int32[Tensor, " n"]:
        """The bag of each id."""
        bags = torch.arange(self.num_bags, dtype=torch.int32)
        return bags.repeat_interleave(self.edges.diff())

    def lines_of(self, num: int) -> Int32[Tensor, " num"]:
        """The bag of each of `num` ids, on the device of the bags and without synchronization."""
        places = torch.arange(num, dtype=self.edges.dtype, device=self.edges.device)
        after = torch.searchsorted(self.edges, places, right=True, out_int32=True)
        return (after - 1).clamp_(0, max(self.num_bags - 1, 0))  # edges on CUDA are unchecked


def gather(
    rows: Float[Tensor, "distinct dim"], found: Distinct, bags: Bags | None = None
) -> Float[Tensor, "lines dim"]:
    """One line per id of a list, or per bag of ids: the sum of its rows.

    Args:
        rows: The rows of `found.ids`.
        found: The distinct ids of the list.
        bags: How ids form bags; `None` for one line per id.
    """
    is_compiled = found.places is not None and is_plain_float(rows) and _kernels() is not None
    if is_compiled or _is_for_triton(rows, found):
        gathered: Tensor = _Gather.apply(rows, found, bags)
        return gathered
    return _read_by_torch(rows, found.inverse, bags)


def read_lines(
    rows: Float[Tensor, "rows dim"], places: Int64[Tensor, " n"], bags: Bags | None = None
) -> Float[Tensor, "lines dim"]:
    """Rows of a large table, one line per place or per bag of places; has no gradient.

    The compiled path prefetches rows.
    """
    rows = rows.detach()
    if is_worthwhile(places.shape[0], LEAST_IDS) and is_plain_float(rows):
        kernels = _kernels()
        if kernels is not None:
            return _read(kernels, rows, places, bags)
    if rows.dtype == torch.float32 and uses_triton(rows, places):
        return _read_by_triton(rows, places, bags)
    return _read_by_torch(rows, places, bags)


def sum_lines(
    gradients: Float[Tensor, "lines dim"],
    found: Distinct,
    bags: Bags | None = None,
    *,
    reuse: bool = False,
) -> Float[Tensor, "distinct dim"]:
    """Σ of the gradients of each distinct id; has no gradient.

    Args:
        gradients: One line per id, or per bag.
        found: The distinct ids.
        bags: How ids form bags.
        reuse: Return a tensor that the next such call of this thread overwrites.
    """
    gradients = gradients.detach().contiguous()
    if found.places is not None and is_plain_float(gradients):
        kernels = _kernels()
        if kernels is not None:
            return _sum(kernels, gradients, found.places, bags, reuse)
    if _is_for_triton(gradients, found):
        return _sum_by_triton(gradients, found, bags)
    if bags is not None:
        gradients = gradients.index_select(0, bags.lines_of(found.inverse.shape[0]).long())
        gradients = _scaled(gradients, bags)
    total = gradients.new_zeros(found.ids.shape[0], gradients.shape[1])
    return total.index_add_(0, found.inverse, gradients)


def is_finite(values: Float[Tensor, "n dim"]) -> bool:
    """Whether no number is NaN or infinite."""
    if is_worthwhile(values.shape[0], LEAST_IDS) and is_plain_float(values):
        kernels = _kernels()
        if kernels is not None:
            return bool(kernels.is_finite(array(values).reshape(-1).view("uint32")))
    return math.isfinite(values.sum()) or bool(values.isfinite().all())


class _Gather(torch.autograd.Function):
    """`gather`, compiled; its gradient is `_Sum`, whose gradient is `_Gather` again."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, found: Distinct, bags: Bags | None) -> Tensor:
        ctx.found, ctx.bags = found, bags
        if found.runs is not None:
            return _read_by_triton(rows, found.inverse, bags)
        return _read(_kernels(), rows, found.inverse, bags)

    @staticmethod
    def backward(ctx: Any, gradients: Tensor) -> Any:
        return _Sum.apply(gradients, ctx.found, ctx.bags), None, None


class _Sum(torch.autograd.Function):
    """The gradient of `_Gather`."""

    @staticmethod
    def forward(ctx: Any, gradients: Tensor, found: Distinct, bags: Bags | None) -> Tensor:
        ctx.found, ctx.bags = found, bags
        return sum_lines(gradients, found, bags)

    @staticmethod
    def backward(ctx: Any, rows: Tensor) -> Any:
        return _Gather.apply(rows.contiguous(), ctx.found, ctx.bags), None, None


def _kernels() -> Any:
    return compiled("gather.gather_numba")


def _is_for_triton(lines: Tensor, found: Distinct) -> bool:
    """Whether Triton kernels read or sum these lines."""
    is_plain = lines.dtype == torch.float32 and lines.shape[1] > 0 and uses_triton(lines)
    return found.runs is not None and is_plain


def _read_by_triton(rows: Tensor, places: Tensor, bags: Bags | None) -> Tensor:
    from outsize.kernels.gather.gather_triton import read_lines_by_triton

    return read_lines_by_triton(rows.contiguous(), places, bags)


def _sum_by_triton(gradients: Tensor, found: Distinct, bags: Bags | None) -> Tensor:
    from outsize.kernels.gather.sums_triton import sum_by_triton

    runs, num = found.runs, found.ids.shape[0]
    assert runs is not None
    if not num:
        return gradients.new_zeros(0, gradients.shape[1])
    unread = torch.zeros(1, dtype=torch.int32, device=gradients.device)
    lines = None if bags is None else bags.lines_of(runs.num)
    scales = None if bags is None else bags.scales
    return sum_by_triton(gradients, runs, num, unread, lines, scales).lines[:num]


def _read(kernels: Any, rows: Tensor, places: Tensor, bags: Bags | None) -> Tensor:
    places = places.contiguous()
    parts = num_parts(places.shape[0] * rows.shape[1], _LEAST_NUMBERS)
    if bags is None:
        out = torch.empty(places.shape[0], rows.shape[1])
        run_parts(kernels.gather_rows, parts, array(rows), array(places), array(out))
    else:
        out = torch.empty(bags.num_bags, rows.shape[1])
        bagged = (array(bags.edges), _scales(bags))
        run_parts(kernels.pool_rows, parts, array(rows), array(places), *bagged, array(out))
    return out


def _sum(kernels: Any, gradients: Tensor, places: Places, bags: Bags | None, reuse: bool) -> Tensor:
    n, dim = places.order.shape[0], gradients.shape[1]
    num_rows, parts = places.starts.shape[0] - 1, num_parts(n * dim, _LEAST_NUMBERS)
    new = scratch("total", num_rows * dim) if reuse else torch.empty(num_rows * dim)
    total, carried = new.view(num_rows, dim), torch.empty(n // BLOCK + parts + 1, dim)
    lines = empty(0, dtype=torch.int32) if bags is None else array(bags.lines())
    starts = array(places.starts)
    run_parts(
        kernels.sum_by_row, parts, array(gradients),
        array(places.order), starts, num_rows, lines, _scales(bags), BLOCK,
        array(total), array(carried),
    )  # fmt: skip
    if parts > 1:
        kernels.add_carried(parts, starts, num_rows, BLOCK, array(total), array(carried))
    return total


def _scales(bags: Bags | None) -> Any:
    return empty(0) if bags is None or bags.scales is None else array(bags.scales)


def _read_by_torch(rows: Tensor, places: Tensor, bags: Bags | None) -> Tensor:
    lines = rows.index_select(0, places)
    if bags is None:
        return lines
    out = lines.new_zeros(bags.num_bags, lines.shape[1])
    return out.index_add(0, bags.lines_of(places.shape[0]).long(), _scaled(lines, bags))


def _scaled(lines: Tensor, bags: Bags) -> Tensor:
    return lines if bags.scales is None else lines * bags.scales.to(lines.dtype).unsqueeze(1)
