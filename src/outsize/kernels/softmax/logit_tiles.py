"""Logits of all queries and items in tiles, without a B × N matrix in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from jaxtyping import BFloat16, Float, Float32, Int64
from torch import Tensor

from outsize.kernels.full_precision import full_precision
from outsize.kernels.ragged import Ragged
from outsize.kernels.softmax.scored_items import ScoredItems

# Logits per tile: on the CPU they should fit the L2 cache, on CUDA they should occupy the whole
# device. The vectors of a tile are converted to float32 on the CPU and should fit a cache too.
_CPU_LOGITS, _CUDA_LOGITS = 1 << 18, 1 << 24
_CPU_VECTOR_NUMBERS, _CUDA_VECTOR_NUMBERS = 1 << 20, 1 << 26
_MAX_QUERIES = 1024
_MIN_ITEMS = 256


@dataclass(frozen=True)
class LogitTile:
    """The logits of a range of queries and a range of items.

    Attributes:
        queries: The range of queries.
        items: The range of items.
        logits: Their logits, −inf if excluded. They may be overwritten; the next tile reuses them.
        vectors: The items' vectors before scaling, in a dtype that can be multiplied.
    """

    queries: slice
    items: slice
    logits: Float32[Tensor, "tile_queries tile_items"]
    vectors: Float[Tensor, "tile_items dim"]


def logit_tiles(
    queries: Float32[Tensor, "num_queries dim"],
    items: ScoredItems,
    excluded: Ragged | None,
) -> Iterator[LogitTile]:
    """Iterate over all tiles: items in order, and all queries for each range of items.

    All ranges of items but the last have the same length, a multiple of 256.
    """
    queries = items.round_queries(queries)
    num_queries = max(1, min(len(queries), _MAX_QUERIES))
    num_items = items_of_a_tile(num_queries, queries.shape[1], on_cuda=queries.is_cuda)
    space = queries.new_empty(num_queries * min(num_items, items.num_items))
    mask = None if excluded is None else _mask_of(excluded, items.num_items, num_queries, num_items)
    for start in range(0, items.num_items, num_items):
        which_items = slice(start, min(start + num_items, items.num_items))
        vectors = as_factors(items.vectors[which_items])
        for first in range(0, len(queries), num_queries):
            which_queries = slice(first, min(first + num_queries, len(queries)))
            shape = (which_queries.stop - which_queries.start, which_items.stop - which_items.start)
            logits = space[: shape[0] * shape[1]].view(shape)
            weights = items.log_weights[which_items]
            if items.scales is None and vectors.dtype == torch.float32:
                with full_precision(logits):  # saves one pass over the logits
                    torch.addmm(weights, queries[which_queries], vectors.t(), out=logits)
            else:
                _multiply(queries[which_queries], vectors, logits)
                if items.scales is not None:
                    logits.mul_(items.scales[which_items])
                logits.add_(weights)
            if mask is not None:
                mask(logits, first, start)
            yield LogitTile(which_queries, which_items, logits, vectors)


def _mask_of(
    excluded: Ragged, num_items: int, tile_queries: int, tile_items: int
) -> Callable[[Tensor, int, int], None]:
    """A function that sets excluded logits of a tile to −inf, given its first query and item."""
    lines, rows = excluded.lines(), excluded.values
    if rows.is_cuda:  # on CUDA, counting the exclusions of a tile would need a synchronization
        return lambda logits, first, start: mask_places(logits, lines - first, rows - start)
    is_row = (rows >= 0) & (rows < num_items)
    if not is_row.all():
        lines, rows = lines[is_row], rows[is_row]
    # Sorted by the queries of a tile, then by item.
    ordered, order = (lines // tile_queries * num_items + rows).sort()
    lines, rows = lines[order] % tile_queries, rows[order]

    def mask(logits: Tensor, first: int, start: int) -> None:
        width = logits.shape[1]
        begin = first // tile_queries * num_items + start
        ends = torch.searchsorted(ordered, torch.tensor([begin, begin + width]))
        inside = slice(*ends.tolist())
        places = lines[inside] * width + rows[inside] - start
        logits.view(-1).index_fill_(0, places, -torch.inf)

    return mask


def mask_places(
    logits: Float32[Tensor, "lines n"], lines: Int64[Tensor, " k"], places: Int64[Tensor, " k"]
) -> None:
    """Set logits at the given lines and places to −inf; places outside are ignored."""
    height, width = logits.shape
    is_inside = (lines >= 0) & (lines < height) & (places >= 0) & (places < width)
    # A minimum with +inf changes nothing, so places need not be filtered, which would synchronize.
    lowered = torch.where(is_inside, -torch.inf, torch.inf).to(logits.dtype)
    where = torch.where(is_inside, lines * width + places, 0)
    logits.view(-1).scatter_reduce_(0, where, lowered, "amin")


def as_factors(vectors: Tensor) -> Tensor:
    """Convert vectors to a dtype for products: bfloat16 on CUDA, float32 elsewhere."""
    if vectors.dtype != torch.float32 and vectors.is_cuda and multiplies_to_float32():
        return vectors.bfloat16()
    return vectors.float()


def multiply_to_float32(left: Float32[Tensor, "n k"], right: Tensor) -> Float32[Tensor, "n m"]:
    """`left @ right`, to about 16 bits of `left` where `right` is bfloat16."""
    if right.dtype == torch.float32:
        with full_precision(left):
            return left @ right
    coarse = left.bfloat16()
    return multiply_parts(coarse, (left - coarse).bfloat16(), right)


def multiply_parts(
    coarse: BFloat16[Tensor, "n k"], rest: BFloat16[Tensor, "n k"], right: BFloat16[Tensor, "k m"]
) -> Float32[Tensor, "n m"]:
    """`(coarse + rest) @ right`, in float32."""
    with full_precision(coarse):
        if not right.is_cuda:
            return (coarse.float() + rest.float()) @ right.float()
        product = torch.mm(coarse, right, out_dtype=torch.float32)
        return product.add_(torch.mm(rest, right, out_dtype=torch.float32))


def _multiply(
    queries: Float32[Tensor, "num_queries dim"],
    vectors: Float[Tensor, "num_items dim"],
    out: Float32[Tensor, "num_queries num_items"],
) -> None:
    with full_precision(queries):
        if vectors.dtype == torch.float32:
            torch.mm(queries, vectors.t(), out=out)
        else:  # the queries have been rounded
            torch.mm(queries.bfloat16(), vectors.t(), out_dtype=torch.float32, out=out)


def multiplies_to_float32() -> bool:
    """Whether torch can multiply bfloat16 with a float32 result; older versions round it."""
    return "dtype_out" in torch.ops.aten.mm.overloads()


def items_of_a_tile(num_queries: int, dim: int, *, on_cuda: bool) -> int:
    """The number of items per tile, a multiple of 256."""
    logits = _CUDA_LOGITS if on_cuda else _CPU_LOGITS
    numbers = _CUDA_VECTOR_NUMBERS if on_cuda else _CPU_VECTOR_NUMBERS
    num_items = min(logits // max(num_queries, 1), numbers // max(dim, 1))
    return max(_MIN_ITEMS, num_items // _MIN_ITEMS * _MIN_ITEMS)
