"""Products of queries with windows of neighbouring items, for draws inside blocks."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float32, Int64
from torch import Tensor

from outsize.kernels.arrays import array, is_plain, is_plain_float
from outsize.kernels.compiled import compiled, is_worthwhile
from outsize.kernels.softmax.scored_items import Vectors
from outsize.kernels.threads import num_parts, run_parts

_LEAST_NUMBERS = 1 << 16
_LEAST_PER_THREAD = 1 << 18


def window_products(
    queries: Float32[Tensor, "num_queries dim"],
    lines: Int64[Tensor, " pairs"],
    vectors: Vectors,
    starts: Int64[Tensor, " pairs"],
    width: int,
) -> Float32[Tensor, "pairs width"]:
    """The products of query `lines[i]` with the `width` vectors from `starts[i]` on.

    The compiled path is for float32 and int8 on the CPU, and gathers no vectors.
    """
    multiply = _compiled(queries, vectors, len(lines) * width)
    if multiply is None:
        windows = vectors.unfold(0, width, 1).transpose(1, 2)
        found = windows.index_select(0, starts).float()
        return found.mul_(queries[lines].unsqueeze(1)).sum(dim=2)
    out = queries.new_empty(len(lines), width)
    places = (array(lines.contiguous()), array(vectors), array(starts.contiguous()))
    parts = num_parts(out.numel() * vectors.shape[1], _LEAST_PER_THREAD)
    run_parts(multiply, parts, array(queries), *places, array(out))
    return out


def _compiled(queries: Tensor, vectors: Tensor, num_products: int) -> Any:
    """The kernel for these vectors; `None` if torch must be used."""
    if not (
        is_plain_float(queries)
        and is_plain(vectors)
        and vectors.is_contiguous()
        and vectors.dtype in (torch.float32, torch.int8)
        and is_worthwhile(num_products * vectors.shape[1], _LEAST_NUMBERS)
    ):
        return None
    kernels = compiled("softmax.windows_numba")
    if kernels is None:
        return None
    return kernels.multiply_bytes if vectors.dtype == torch.int8 else kernels.multiply_floats
