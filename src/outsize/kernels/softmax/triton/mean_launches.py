"""The mean of the items' vectors under a softmax on CUDA.

Up to a dim, one kernel computes shares and their product with the vectors. Above, the sums of a
tile do not fit registers: shares are written by Triton, and multiplied by a library. That product
has few rows and columns but a million terms, so its terms are split in parts that are added.
Nothing here synchronizes the device.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import torch
from jaxtyping import BFloat16, Float32
from torch import Tensor

from outsize.kernels.launches_triton import ceil_div, launch, power_of_two
from outsize.kernels.launching import num_processors, on_device
from outsize.kernels.ragged import Ragged
from outsize.kernels.softmax.scored_items import Excluded, ScoredItems, as_lists
from outsize.kernels.softmax.triton.fused_mean import fused_mean_kernel
from outsize.kernels.softmax.triton.shares import add_rest_kernel, softmax_shares_kernel
from outsize.kernels.softmax.triton.tile_launches import (
    descriptor,
    has_aligned_rows,
    launch_over_tiles,
    limits,
)
from outsize.kernels.softmax.tuning import SoftmaxTuning, default_tuning

_SHARES_PER_PASS = 1 << 27
_QUERIES_PER_PASS = 4096
_ITEMS_PER_STEP = 1024
_SPARE = 8  # extra columns: keep rows aligned, and receive writes for items of other passes
# A share above this is stored in two parts. With few items, all are: it costs little there.
_HEAVY, _MANY_ITEMS = 2.0**-12, 1 << 17
_LEAST_TERMS = 1024  # of one part of the product
_PRODUCT_TILE = 128 * 256  # numbers of the result that one processor computes at a time
_WAVES = 2  # parts of the product, per processor
_FUSED_DIM, _FUSED_EXCLUDED = 128, 4  # at most, for one kernel
FUSED_TILE = (64, 128, 4, 2)  # queries, items, warps and pipeline stages of that kernel
_FUSED_PROGRAMS = 2  # per processor


def mean_by_triton(
    queries: Float32[Tensor, "num_queries dim"],
    items: ScoredItems,
    log_partition: Float32[Tensor, " num_queries"],
    excluded: Excluded = None,
) -> Float32[Tensor, "num_queries dim"]:
    """`softmax_mean` for items that are not float32."""
    queries, items, lists = queries.contiguous(), items.contiguous(), as_lists(excluded)
    width = 0 if lists is None else lists.width
    if queries.shape[1] <= _FUSED_DIM and width is not None and width <= _FUSED_EXCLUDED:
        return _fused_mean(queries, items, log_partition, lists)
    mean = torch.zeros_like(queries)
    with on_device(queries):
        for start in range(0, len(queries), _QUERIES_PER_PASS):
            some = slice(start, start + _QUERIES_PER_PASS)
            pairs = None if lists is None else _pairs_of(lists, start)
            _add_mean(mean[some], queries[some].bfloat16(), items, log_partition[some], pairs)
    return mean


def _fused_mean(
    queries: Float32[Tensor, "num_queries dim"],
    items: ScoredItems,
    log_partition: Float32[Tensor, " num_queries"],
    excluded: Ragged | None,
) -> Float32[Tensor, "num_queries dim"]:
    """The mean by one kernel, and by a second one for tiles with a heavy item."""
    num_queries, dim = queries.shape
    query_tile, item_tile, num_warps, num_stages = FUSED_TILE
    while query_tile > 16 and query_tile >= 2 * num_queries:
        query_tile //= 2
    if query_tile < 64:
        num_warps = 4
    query_tiles = ceil_div(num_queries, query_tile)
    item_tiles = ceil_div(items.num_items, item_tile)
    wanted = max(1, _FUSED_PROGRAMS * num_processors(queries.device) // query_tiles)
    per_program = ceil_div(item_tiles, wanted)
    num_parts = ceil_div(item_tiles, per_program)
    is_large = items.num_items > _MANY_ITEMS
    sums = torch.empty(1 + is_large, num_parts, num_queries, dim, device=queries.device)
    flags = torch.empty(
        item_tiles if is_large else 0,
        query_tiles * query_tile,
        dtype=torch.int8,
        device=queries.device,
    )
    rounded = queries.bfloat16().contiguous()
    # exp(logit − inf) is 0, also if the logit is −inf.
    whole = log_partition.masked_fill(log_partition == -torch.inf, torch.inf)
    scales = items.log_weights if items.scales is None else items.scales
    depth, vectors = max(16, power_of_two(dim)), items.vectors.contiguous()
    descriptors = limits(queries.device).has_descriptors and has_aligned_rows(vectors)
    factors = descriptor(vectors, item_tile, depth) if descriptors else vectors
    with on_device(queries):
        for parts, written in zip((1, 0) if is_large else (2,), sums, strict=True):
            launch(
                fused_mean_kernel,
                (query_tiles, num_parts),
                (
                    rounded,
                    factors,
                    scales.contiguous(),
                    items.log_weights.contiguous(),
                    whole,
                    rounded if excluded is None else excluded.values.contiguous(),
                    flags,
                    _HEAVY,
                    written,
                    num_queries,
                    items.num_items,
                    per_program,
                ),
                DIM=dim,
                DEPTH=depth,
                QUERY_TILE=query_tile,
                ITEM_TILE=item_tile,
                SCALED=items.scales is not None,
                EXCLUDED=0 if excluded is None else excluded.width,
                PARTS=parts,
                FLAGS=16,
                DESCRIPTORS=descriptors,
                num_warps=num_warps,
                num_stages=num_stages,
            )
    mean = sums.sum(dim=(0, 1))
    return mean.masked_fill_(log_partition.isnan().unsqueeze(1), torch.nan)


def _pairs_of(excluded: Ragged, start: int) -> tuple[Tensor, Tensor]:
    """The lines of excluded pairs relative to `start`, and their rows; −1 outside of this pass."""
    lines, rows = excluded.lines(), excluded.values
    if excluded.num_lines <= _QUERIES_PER_PASS:
        return lines, rows
    is_here = (lines >= start) & (lines < start + _QUERIES_PER_PASS)
    return torch.where(is_here, lines - start, 0), torch.where(is_here, rows, -1)


def _add_mean(
    mean: Tensor,
    queries: Tensor,
    items: ScoredItems,
    log_partition: Tensor,
    excluded: tuple[Tensor, Tensor] | None,
) -> None:
    num_queries, dim = queries.shape
    tuning = shares_tuning(num_queries, items, dim)
    # exp(logit − inf) is 0, also if the logit is −inf.
    whole = log_partition.masked_fill(log_partition == -torch.inf, torch.inf)
    steps = max(1, _SHARES_PER_PASS // (num_queries * _ITEMS_PER_STEP))
    width = min(steps * _ITEMS_PER_STEP, -(-items.num_items // _SPARE) * _SPARE)
    coarse, rest = queries.new_empty(2, num_queries, width + _SPARE)
    flags = torch.empty(
        ceil_div(width, tuning.item_tile),
        ceil_div(num_queries, tuning.query_tile) * tuning.query_tile,
        dtype=torch.int8,
        device=queries.device,
    )
    heavy = _HEAVY if items.num_items > _MANY_ITEMS else -1.0
    lines, rows = (None, None) if excluded is None else excluded
    first = None if lines is None else lines * (width + _SPARE)
    for start in range(0, items.num_items, width):
        some = items.part(slice(start, start + width))
        launch_over_tiles(
            softmax_shares_kernel,
            queries,
            some,
            tuning,
            (whole, flags, heavy),
            width + _SPARE,
            (coarse, rest),
        )
        if rows is not None and first is not None:
            places = rows - start
            is_inside = (places >= 0) & (places < some.num_items)
            places = torch.where(is_inside, places, width) + first
            for shares in (coarse, rest):
                shares.view(-1).scatter_(0, places, 0.0)
        inside = slice(some.num_items)
        mean += split_product(coarse[:, inside], some.vectors.bfloat16())
        mean += _product_of_rest(rest[:, inside], flags, some.vectors, tuning)
    mean.masked_fill_(log_partition.isnan().unsqueeze(1), torch.nan)


def shares_tuning(num_queries: int, items: ScoredItems, dim: int) -> SoftmaxTuning:
    """Sizes of the kernel that computes shares."""
    device = items.vectors.device
    tuning = default_tuning(
        num_queries, items.num_items, dim, items.vectors.dtype, 1, limits(device)
    )
    if tuning.descriptors:  # shared memory has space for half a tile of shares of two programs
        num_stages = 3 if items.vectors.dtype == torch.bfloat16 else 2
        tuning = replace(tuning, num_stages=num_stages, programs_per_processor=2)
    return tuning


def split_product(
    left: BFloat16[Tensor, "n k"], right: BFloat16[Tensor, "k m"]
) -> Float32[Tensor, "n m"]:
    """`left @ right` in float32, as a sum of products over parts of the terms."""
    (num_lines, num_terms), num_columns = left.shape, right.shape[1]
    tiles = ceil_div(num_lines * num_columns, _PRODUCT_TILE)
    terms = terms_per_part(num_terms, max(1, _WAVES * num_processors(left.device) // tiles))
    parts = num_terms // terms
    inside = parts * terms
    with torch.autocast(left.device.type, enabled=False):
        if not left.is_cuda:  # Triton's interpreter
            return left.float() @ right.float()
        if inside == num_terms:
            rest = None
        else:
            rest = torch.mm(left[:, inside:], right[inside:], out_dtype=torch.float32)
        if not parts:
            assert rest is not None
            return rest
        lefts = left[:, :inside].unflatten(1, (parts, terms)).transpose(0, 1)
        rights = right[:inside].unflatten(0, (parts, terms))
        product = torch.bmm(lefts, rights, out_dtype=torch.float32).sum(dim=0)
    return product if rest is None else product.add_(rest)


@lru_cache(maxsize=64)
def terms_per_part(num_terms: int, wanted: int) -> int:
    """Terms of each part of a product; without a remainder if up to twice the parts allow it."""
    for parts in range(wanted, 2 * wanted):
        if num_terms % (64 * parts) == 0 and num_terms // parts >= _LEAST_TERMS:
            return num_terms // parts
    return max(_LEAST_TERMS, ceil_div(ceil_div(num_terms, wanted), 64) * 64)


def _product_of_rest(
    rest: Tensor, flags: Tensor, vectors: Tensor, tuning: SoftmaxTuning
) -> Float32[Tensor, "num_queries dim"]:
    """The product of what rounding took from shares, where a tile has a flag."""
    (num_queries, num_items), dim = rest.shape, vectors.shape[1]
    vectors = vectors.contiguous()
    num_item_tiles = ceil_div(num_items, tuning.item_tile)
    width = max(16, min(128, power_of_two(dim)))
    grid = ceil_div(num_queries, tuning.query_tile), ceil_div(dim, width)
    wanted = max(1, 2 * num_processors(rest.device) // (grid[0] * grid[1]))
    per_program = ceil_div(num_item_tiles, wanted)
    parts = ceil_div(num_item_tiles, per_program)
    sums = torch.empty(parts, num_queries, dim, device=rest.device)
    launch(
        add_rest_kernel,
        (*grid, parts),
        (
            rest,
            flags,
            vectors,
            sums,
            num_queries,
            num_items,
            rest.stride(0),
            num_item_tiles,
            per_program,
        ),
        DIM=dim,
        QUERY_TILE=tuning.query_tile,
        ITEM_TILE=tuning.item_tile,
        WIDTH=width,
        FLAGS=32,
        STEP=min(64, tuning.item_tile),
        num_warps=8,
        num_stages=2,
    )
    return sums.sum(dim=0)
