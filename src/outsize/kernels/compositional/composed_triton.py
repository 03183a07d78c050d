"""`composed` on CUDA: which kernels are launched, and how they are differentiated.

Where pieces begin is computed again for the gradient, which takes less time than to write and read
it. Gradients are summed in an order that does not change where that takes at most about twice as
long as in any order; for larger tables, only where torch's deterministic algorithms are asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from outsize.kernels.compositional.compose_triton import compose_kernel
from outsize.kernels.compositional.places import Places
from outsize.kernels.compositional.scatter_triton import scatter_pieces_kernel
from outsize.kernels.compositional.sums_triton import add_totals_kernel, sum_pieces_kernel
from outsize.kernels.launches_triton import ceil_div, launch, power_of_two
from outsize.kernels.launching import on_device

_SPLITS = {torch.float32: 3, torch.float16: 2, torch.bfloat16: 1}  # parts of bfloat16
_MOST_LANES = 256
_MOST_PIECES = (1 << 31) - (1 << 12)  # the next block of the last one begins below 2³¹, too
_WARPS = 4  # of a program that is not a part of an order


class Tuning(NamedTuple):
    """How the kernels cut their work; sums depend on it in their last bits.

    Attributes:
        numbers: Numbers per program of a look-up, and of sums in any order.
        block: Pieces whose gradients are compared with each other.
        warps: Warps of a program that sums in order.
        most_programs: Programs that sum in order.
        most_totals: Numbers of their arrays of sums together.
        enough_programs: So many sum in order as fast as is worthwhile, whatever there is to sum.
        most_blocks: Blocks that one of fewer programs sums, one after the other.
        most_blocks_if_asked: The same where deterministic algorithms are asked for.
        most_copies: Arrays to which sums are added in any order, so that frequent pieces wait less.
        most_copied: Numbers of these arrays together.
    """

    numbers: int = 4096
    block: int = 64
    warps: int = 2
    most_programs: int = 512
    most_totals: int = 1 << 24
    enough_programs: int = 384
    most_blocks: int = 1 << 5
    most_blocks_if_asked: int = 1 << 11
    most_copies: int = 64
    most_copied: int = 1 << 23


TUNING = Tuning()
SMALL_TUNING = TUNING._replace(block=32, warps=1, most_programs=1024)  # with more, shorter programs
_SMALL = 1 << 12  # numbers


def composed_by_triton(
    weight: Float[Tensor, "..."],
    ids: Int64[Tensor, " n"],
    widths: tuple[int, ...],
    sources: Sequence[Any],
    lines: Int64[Tensor, " n"],
    signed: bool,
) -> Float[Tensor, "n dim"] | None:
    """`composed` on CUDA; `None` if the caller must use torch."""
    first = sources[0]
    edges = [sum(widths[:j]) for j in range(len(widths))]
    steps = [place - first.starts[0] for place in first.starts]
    size, circular = weight.numel(), first.stride < widths[0]
    if (
        weight.dtype not in _SPLITS
        or not weight.is_contiguous()
        or not 0 < ids.shape[0] * len(widths) <= _MOST_PIECES
        or steps not in ([0] * len(steps), edges)
        or widths[0] > min(size, _MOST_LANES)
        or (circular and len(sources) > 1)
    ):
        return None
    places = Places(
        ids.contiguous(),
        lines.contiguous(),
        tuple((source.pointers, source.starts[0]) for source in sources),
        sum(widths),
        len(widths),
        first.stride,
        any(steps),
        signed,
        size,
    )
    is_asked = torch.are_deterministic_algorithms_enabled() and weight.requires_grad
    if is_asked and not _sums_in_order(places, tuning_for(places)):
        return None
    vectors: Tensor = _Compose.apply(weight, places)
    return vectors


class _Compose(torch.autograd.Function):
    """Vectors from pieces; its gradient is `_Sum`, whose gradient is `_Compose` again."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, places: Places) -> Tensor:
        ctx.places, ctx.shape = places, weight.shape
        return compose(weight, places)

    @staticmethod
    def backward(ctx: Any, gradients: Tensor) -> Any:
        gradients = gradients.contiguous()
        if torch.is_grad_enabled():  # with a gradient of its own
            return _Sum.apply(gradients, ctx.places, ctx.shape), None
        return summed(gradients, ctx.places).view(ctx.shape), None


class _Sum(torch.autograd.Function):
    """Σ of the gradients of each number of the array."""

    @staticmethod
    def forward(ctx: Any, gradients: Tensor, places: Places, shape: torch.Size) -> Tensor:
        ctx.places = places
        return summed(gradients, places).view(shape)

    @staticmethod
    def backward(ctx: Any, weight: Tensor) -> Any:
        return _Compose.apply(weight.contiguous(), ctx.places), None, None


def tuning_for(places: Places) -> Tuning:
    """The setting for an array of some size."""
    return SMALL_TUNING if places.size <= _SMALL and not places.is_circular else TUNING


def compose(weight: Float[Tensor, "..."], places: Places) -> Float[Tensor, "n dim"]:
    """Put vectors together."""
    out = weight.new_empty(places.ids.shape[0], places.dim)
    lanes = power_of_two(places.width)
    block = max(16, tuning_for(places).numbers // lanes)
    with on_device(weight):
        launch(
            compose_kernel, (ceil_div(places.num_pieces, block),),
            (weight, out, *places.arguments(), places.size),
            **places.constants(), LANES=lanes, BLOCK=block, num_warps=_WARPS,
        )  # fmt: skip
    return out


def summed(
    gradients: Float[Tensor, "n dim"], places: Places, tuning: Tuning | None = None
) -> Float[Tensor, " size"]:
    """Sum gradients by piece."""
    tuning = tuning or tuning_for(places)
    in_order = _sums_in_order(places, tuning)
    totals = (_totals_in_order if in_order else _totals)(gradients, places, tuning)
    if totals.shape[0] == 1 and totals.shape[1] == places.size and totals.dtype == gradients.dtype:
        return totals.view(-1)
    out = gradients.new_empty(places.size)
    with on_device(gradients):
        launch(
            add_totals_kernel, (ceil_div(places.size, 64),),
            (totals, out, totals.shape[0], totals.shape[1], places.size),
            LINES=32, BLOCK=64,
        )  # fmt: skip
    return out


def _totals_in_order(
    gradients: Float[Tensor, "n dim"], places: Places, tuning: Tuning
) -> Float[Tensor, "programs totals"]:
    """Sums of the gradients in each program's share of the pieces."""
    block, num_totals = _block(places, tuning), _num_totals(places)
    num_programs = min(_num_programs(places, tuning), ceil_div(places.num_pieces, block))
    totals = gradients.new_empty(num_programs, num_totals, dtype=torch.float32)
    with on_device(gradients):
        launch(
            sum_pieces_kernel, (num_programs,),
            (gradients, totals, *places.arguments(), num_totals, places.size),
            **places.constants(), LANES=_lanes(places), BLOCK=block,
            SPLITS=_SPLITS[gradients.dtype], ZEROS=min(2048, power_of_two(num_totals)),
            num_warps=tuning.warps,
        )  # fmt: skip
    return totals


def _totals(
    gradients: Float[Tensor, "n dim"], places: Places, tuning: Tuning
) -> Float[Tensor, "copies totals"]:
    """Sums by atomic operations, in a few arrays so that frequent pieces wait less."""
    lanes = power_of_two(places.width)
    block = max(16, tuning.numbers // lanes)
    num_totals = -(-places.size // 16) * 16
    worthwhile = places.num_pieces * lanes // num_totals
    copies = max(1, min(tuning.most_copies, tuning.most_copied // num_totals, worthwhile))
    totals = gradients.new_zeros(copies, num_totals, dtype=torch.float32)
    with on_device(gradients):
        launch(
            scatter_pieces_kernel, (ceil_div(places.num_pieces, block),),
            (gradients, totals, *places.arguments(), copies, num_totals, places.size),
            **places.constants(), LANES=lanes, BLOCK=block, num_warps=_WARPS,
        )  # fmt: skip
    return totals


def _lanes(places: Places) -> int:
    """Numbers of a piece that are summed together; 16 or more, as products need."""
    return max(16, power_of_two(places.width))


def _block(places: Places, tuning: Tuning) -> int:
    return max(16, min(tuning.block, 4096 // _lanes(places)))


def _num_totals(places: Places) -> int:
    """Numbers of an array of sums, a multiple of 16; a circular one continues past its end."""
    lanes = _lanes(places) if places.is_circular else 16
    return (-(-places.size // lanes) + places.is_circular) * lanes


def _num_programs(places: Places, tuning: Tuning) -> int:
    """So many that their sums stay in the L2 cache, and cost little beside the gradients."""
    fits = tuning.most_totals // _num_totals(places)
    worthwhile = 4 * places.num_pieces * _lanes(places) // _num_totals(places)
    return max(1, min(tuning.most_programs, fits, worthwhile))


def _sums_in_order(places: Places, tuning: Tuning) -> bool:
    """Whether the array is small enough for one of sums in each of many programs."""
    blocks, num_programs = (
        -(-places.num_pieces // _block(places, tuning)),
        _num_programs(places, tuning),
    )
    if torch.are_deterministic_algorithms_enabled():
        return blocks <= tuning.most_blocks_if_asked * num_programs
    return num_programs >= tuning.enough_programs or blocks <= tuning.most_blocks * num_programs
