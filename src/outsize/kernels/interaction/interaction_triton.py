"""The products of all pairs of vectors, and their gradient, in one Triton kernel each.

A program keeps the vectors of an example in registers. The matrix of all products, of which less
than half is needed, is never written, nor are copies that join vectors and products.
"""

from __future__ import annotations

from typing import Any, no_type_check

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from outsize.kernels.launches_triton import launch, power_of_two
from outsize.kernels.launching import on_device

_MOST_VECTORS, _MOST_DIMS = 64, 128  # which registers have room for
_LEAST = 16  # rows and columns that are multiplied
_PRODUCTS_PER_WARP = 1024


def fits_registers(vectors: Tensor, first: Tensor | None) -> bool:
    """Whether the kernels take vectors of this shape and type."""
    _, num, dim = vectors.shape
    return (
        1 <= dim <= _MOST_DIMS
        and num + (first is not None) <= _MOST_VECTORS
        and vectors.dtype in (torch.float32, torch.bfloat16)
        and (first is None or first.dtype == vectors.dtype)
    )


def interact_by_triton(
    vectors: Float[Tensor, "batch num dim"], first: Float[Tensor, "batch dim"] | None
) -> Float[Tensor, "batch width"]:
    """`first`, if it is given, then the products of pairs, of which it is in the first vector."""
    num_pairs, sizes = _sizes(vectors, first)
    width = num_pairs + (0 if first is None else vectors.shape[2])
    out = vectors.new_empty(len(vectors), width)
    vectors = vectors.contiguous()
    first = vectors if first is None else first.contiguous()
    if out.numel():
        with on_device(vectors):
            launch(interact_kernel, (len(vectors),), (vectors, first, out), **sizes)
    return out


def gradients_by_triton(
    gradients: Float[Tensor, "batch width"],
    vectors: Float[Tensor, "batch num dim"],
    first: Float[Tensor, "batch dim"] | None,
) -> tuple[Float[Tensor, "batch num dim"], Float[Tensor, "batch dim"] | None]:
    """The gradients of `vectors` and of `first`, given those of the result."""
    _, sizes = _sizes(vectors, first)
    vectors = vectors.contiguous()
    of_vectors = torch.empty_like(vectors)
    of_first = None if first is None else torch.empty_like(first.contiguous())
    if len(vectors):
        with on_device(vectors):
            launch(
                interaction_gradients_kernel,
                (len(vectors),),
                (
                    gradients.contiguous(),
                    vectors,
                    vectors if first is None else first.contiguous(),
                    of_vectors,
                    of_vectors if of_first is None else of_first,
                ),
                **sizes,
            )
    return of_vectors, of_first


def _sizes(vectors: Tensor, first: Tensor | None) -> tuple[int, dict[str, Any]]:
    """The number of pairs, and what the kernels are compiled for."""
    _, num_others, dim = vectors.shape
    num = num_others + (first is not None)
    rows = max(_LEAST, power_of_two(num))
    sizes = {
        "NUM": num,
        "DIM": dim,
        "FIRST": int(first is not None),
        "ROWS": rows,
        "COLUMNS": max(_LEAST, power_of_two(dim)),
        "num_warps": max(1, rows * rows // _PRODUCTS_PER_WARP),
    }
    return num * (num - 1) // 2, sizes


@triton.jit
@no_type_check
def _load_vectors(
    vectors,
    first,
    NUM: tl.constexpr,
    DIM: tl.constexpr,
    FIRST: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """The vectors of an example, with zeros below and beside."""
    row, column = tl.arange(0, ROWS)[:, None], tl.arange(0, COLUMNS)[None, :]
    example = tl.program_id(0).to(tl.int64)
    is_other = (row >= FIRST) & (row < NUM) & (column < DIM)
    places = (example * (NUM - FIRST) + (row - FIRST)) * DIM + column
    found = tl.load(vectors + places, mask=is_other, other=0)
    if FIRST:
        is_first = (row == 0) & (column < DIM)
        own = tl.load(first + example * DIM + row * 0 + column, mask=is_first, other=0)
        found = tl.where(row == 0, own, found)
    return found


@triton.jit
@no_type_check
def interact_kernel(
    vectors,
    first,
    out,
    NUM: tl.constexpr,
    DIM: tl.constexpr,
    FIRST: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Write the first vector of an example, if there is one, and the products."""
    found = _load_vectors(vectors, first, NUM, DIM, FIRST, ROWS, COLUMNS)
    products = tl.dot(found, tl.trans(found), input_precision="ieee")
    line = out + tl.program_id(0).to(tl.int64) * (FIRST * DIM + NUM * (NUM - 1) // 2)
    row, other = tl.arange(0, ROWS)[:, None], tl.arange(0, ROWS)[None, :]
    tl.store(
        line + FIRST * DIM + row * (row - 1) // 2 + other,
        products.to(out.dtype.element_ty),
        mask=(other < row) & (row < NUM),
    )
    if FIRST:
        column = tl.arange(0, COLUMNS)[None, :]
        tl.store(line + row * 0 + column, found, mask=(row == 0) & (column < DIM))


@triton.jit
@no_type_check
def interaction_gradients_kernel(
    gradients,
    vectors,
    first,
    of_vectors,
    of_first,
    NUM: tl.constexpr,
    DIM: tl.constexpr,
    FIRST: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Write the gradients of an example's vectors."""
    found = _load_vectors(vectors, first, NUM, DIM, FIRST, ROWS, COLUMNS)
    example = tl.program_id(0).to(tl.int64)
    line = gradients + example * (FIRST * DIM + NUM * (NUM - 1) // 2)
    row, other = tl.arange(0, ROWS)[:, None], tl.arange(0, ROWS)[None, :]
    later, earlier = tl.maximum(row, other), tl.minimum(row, other)
    symmetric = tl.load(
        line + FIRST * DIM + later * (later - 1) // 2 + earlier,
        mask=(row != other) & (later < NUM),
        other=0,
    )
    total = tl.dot(symmetric, found, input_precision="ieee")
    if FIRST:
        depth = tl.arange(0, COLUMNS)
        own = tl.load(line + depth, mask=depth < DIM, other=0).to(tl.float32)
        own += tl.sum(tl.where(row == 0, total, 0.0), axis=0)
        own = own.to(of_first.dtype.element_ty)
        tl.store(of_first + example * DIM + depth, own, mask=depth < DIM)
    column = tl.arange(0, COLUMNS)[None, :]
    is_other = (row >= FIRST) & (row < NUM) & (column < DIM)
    places = of_vectors + (example * (NUM - FIRST) + (row - FIRST)) * DIM + column
    tl.store(places, total.to(of_vectors.dtype.element_ty), mask=is_other)
