"""Exact draws from a softmax on CUDA: launching the Triton kernels.

Four launches: prepare the queries, pass over all items, masses of groups of blocks, draws; and one
for blocks with excluded items. Nothing here synchronizes the device.
"""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Float32, Int64
from torch import Tensor

from outsize.kernels.directory.lookup import SortedKeys, rows_holding
from outsize.kernels.launches_triton import ceil_div, launch, power_of_two
from outsize.kernels.launching import on_device
from outsize.kernels.ragged import Ragged
from outsize.kernels.softmax.held_draws import HeldDraws, HeldKeys
from outsize.kernels.softmax.scored_items import Excluded, ScoredItems, SoftmaxDraws, as_lists
from outsize.kernels.softmax.triton.block_masses import block_masses_kernel
from outsize.kernels.softmax.triton.queries import prepare_queries_kernel
from outsize.kernels.softmax.triton.tile_launches import launch_over_tiles, limits
from outsize.kernels.softmax.triton.tree_draws import (
    draw_kernel,
    group_masses_kernel,
    mask_blocks_kernel,
)
from outsize.kernels.softmax.tuning import SoftmaxTuning, default_tuning, queries_per_pass

_MIN_GROUP = 64
_MAX_GROUPS = 2048
_BLOCKS_PER_PROGRAM = 1024
_MAX_QUERY_DEPTH = 1024
_MAX_WIDTH = 32  # of lists that are sorted by the kernel that prepares queries


class _Outputs(NamedTuple):
    """What a draw writes, one line per query; the last four only for held items."""

    rows: Tensor
    logits: Tensor
    log_partition: Tensor
    keys: Tensor
    ages: Tensor
    embeddings: Tensor
    uniforms: Tensor

    def part(self, which: slice) -> _Outputs:
        return _Outputs(*(values[which] for values in self))


class _Exclusions(NamedTuple):
    """Exclusions as lists of one width that a kernel sorts, or as sorted pairs; or none.

    Attributes:
        values: Keys or rows, `width` per query.
        width: Exclusions per query in `values`; 0 if there are none.
        pairs: The exclusions of all queries, as `Ragged.pairs`.
    """

    values: Tensor
    width: int
    pairs: Tensor


class _Part(NamedTuple):
    """A range of queries, and what is read and written for them."""

    queries: Tensor
    uniforms: Tensor
    exclusions: _Exclusions
    out: _Outputs
    rounded: Tensor
    first_query: int


def draw_by_triton(
    queries: Float32[Tensor, "num_queries dim"],
    items: ScoredItems,
    num: int,
    generator: torch.Generator,
    excluded: Excluded = None,
    tuning: SoftmaxTuning | None = None,
    systematic: bool = False,
) -> SoftmaxDraws:
    """`draw_from_softmax` for at least one query and one item, and dim >= 1."""
    out, _ = _draw(
        queries, 1.0, items, num, generator, as_lists(excluded), None, tuning, systematic
    )
    return SoftmaxDraws(out.rows, out.logits, out.log_partition)


def draw_held_by_triton(
    queries: Tensor,
    beta: float | Tensor,
    items: ScoredItems,
    held: HeldKeys,
    num: int,
    generator: torch.Generator,
    excluded: Ragged | None = None,
    systematic: bool = False,
    tuning: SoftmaxTuning | None = None,
) -> HeldDraws:
    """Draws from the items of a cache, with their keys, ages and embeddings.

    Args:
        queries: At least one query, of any float dtype.
        beta: The inverse temperature; a tensor on the device of the queries is not waited for.
        items: At least one item.
        held: The keys of the items, and when they were encoded.
        num: Draws per query.
        generator: A generator on the device of the queries.
        excluded: Keys to exclude per query.
        systematic: As in `draw_from_softmax`.
        tuning: Sizes; by default `default_tuning`.
    """
    if excluded is not None and not len(excluded.values):
        excluded = None
    out, rounded = _draw(queries, beta, items, num, generator, excluded, held, tuning, systematic)
    draws = SoftmaxDraws(out.rows, out.logits, out.log_partition)
    return HeldDraws(draws, out.keys, out.ages, out.embeddings, out.uniforms, rounded)


def _draw(
    queries: Tensor,
    beta: float | Tensor,
    items: ScoredItems,
    num: int,
    generator: torch.Generator,
    excluded: Ragged | None,
    held: HeldKeys | None,
    tuning: SoftmaxTuning | None,
    systematic: bool,
) -> tuple[_Outputs, Tensor]:
    """Draws, and the queries as they are multiplied; `excluded` are keys if `held` is given."""
    num_queries, dim = queries.shape
    device, dtype = queries.device, items.vectors.dtype
    tuning = tuning or default_tuning(num_queries, items.num_items, dim, dtype, num, limits(device))
    items = items.contiguous()
    queries = queries.contiguous()
    if not isinstance(beta, Tensor) or (queries.is_cuda and not beta.is_cuda):
        beta = float(beta)
    with on_device(queries):
        out = _outputs(num_queries, num, dim if held is not None else 0, device)
        rounded = torch.empty(
            queries.shape,
            dtype=torch.float32 if dtype == torch.float32 else torch.bfloat16,
            device=device,
        )
        uniforms = _uniforms(num_queries, num, generator, systematic)
        if held is not None and systematic:
            torch.rand(num_queries, num, generator=generator, out=out.uniforms)
        exclusions = _exclusions(excluded, items.num_items, held, device)
        per_pass = queries_per_pass(items.num_items, tuning)
        draw = partial(
            _draw_part, beta=beta, items=items, num=num, held=held, tuning=tuning, carry=systematic
        )
        if num_queries <= per_pass:  # views take as long as a small kernel
            draw(_Part(queries, uniforms, exclusions, out, rounded, 0))
            return out, rounded
        for start in range(0, num_queries, per_pass):
            some = slice(start, start + per_pass)
            values = exclusions.values
            if exclusions.width:
                values = values[start * exclusions.width : some.stop * exclusions.width]
            excluded_here = exclusions._replace(values=values)
            parts = queries[some], uniforms[some], excluded_here, out.part(some), rounded[some]
            draw(_Part(*parts, start))
    return out, rounded


def _draw_part(
    part: _Part,
    beta: float | Tensor,
    items: ScoredItems,
    num: int,
    held: HeldKeys | None,
    tuning: SoftmaxTuning,
    carry: bool,
) -> None:
    """Draws for a range of queries."""
    queries, uniforms, exclusions, out, rounded, first_query = part
    num_queries, dim = queries.shape
    width = exclusions.width
    nothing = torch.empty(num_queries, device=queries.device)
    pairs = torch.empty_like(exclusions.values) if width else exclusions.pairs
    # Arguments that are not read are placeholders.
    keys = exclusions.values if held is None else held.keys
    long, short = (SortedKeys(keys, keys),) * 2 if held is None else held.lists
    launch(
        prepare_queries_kernel,
        (num_queries,),
        (
            queries,
            beta,
            rounded,
            nothing,
            exclusions.values,
            pairs,
            keys,
            *long,
            *short,
            items.num_items,
            len(long.keys),
            len(short.keys),
        ),
        DIM=dim,
        DEPTH=_depth(dim),
        WIDTH=width,
        LIST=power_of_two(max(1, width)),
        BY_KEY=held is not None,
        BETA_IN_MEMORY=isinstance(beta, Tensor),
        num_warps=4,
    )
    masses = _block_masses(rounded, items, tuning)
    num_blocks = masses.shape[1]
    group, num_groups = group_sizes(num_blocks)
    scales = items.log_weights if items.scales is None else items.scales
    inputs = (rounded, items.vectors, scales, items.log_weights)
    sizes: dict[str, Any] = {
        "DIM": dim,
        "DEPTH": tuning.draw_depth,
        "BLOCK": tuning.block,
        "SCALED": items.scales is not None,
        "num_warps": tuning.draw_warps,
    }
    # Lists were prepared for this part alone.
    first_listed, num_pairs = (0, 0) if width else (first_query, len(pairs))
    if len(pairs):
        launch(
            mask_blocks_kernel,
            (len(pairs),),
            (
                *inputs,
                pairs,
                masses,
                items.num_items,
                num_pairs,
                first_listed,
                num_queries,
                num_blocks,
            ),
            WIDTH=width,
            **sizes,
        )
    groups = masses.new_empty(num_queries, num_groups)
    per_program = max(1, _BLOCKS_PER_PROGRAM // group)
    launch(
        group_masses_kernel,
        (num_queries * ceil_div(num_groups, per_program),),
        (masses, groups, num_blocks, num_groups),
        GROUP=group,
        GROUPS=per_program,
        num_warps=1,  # with more, they wait for each other longer than for memory
    )
    launch(
        draw_kernel,
        (num_queries * max(1, num),),
        (
            *inputs,
            pairs,
            nothing,
            masses,
            groups,
            uniforms,
            out.rows,
            out.logits,
            out.log_partition,
            keys,
            keys if held is None else held.encoded_at,
            out.keys,
            out.ages,
            out.embeddings,
            out.uniforms,
            items.num_items,
            num_pairs,
            first_listed,
            num_blocks,
            num_groups,
            num,
            0 if held is None else held.clock,
        ),
        WIDTH=width,
        GROUP=group,
        GROUPS=max(16, power_of_two(num_groups)),
        CARRY=carry,
        HELD=held is not None,
        ROW_DEPTH=_depth(dim),
        **sizes,
    )


def _outputs(num_queries: int, num: int, held_dim: int, device: torch.device) -> _Outputs:
    rows = torch.empty(num_queries, num, dtype=torch.int64, device=device)
    logits = torch.empty(num_queries, num, device=device)
    log_partition = torch.empty(num_queries, device=device)
    if not held_dim:
        return _Outputs(rows, logits, log_partition, rows, rows, logits, logits)
    return _Outputs(
        rows,
        logits,
        log_partition,
        torch.empty_like(rows),
        torch.empty_like(rows),
        torch.empty(num_queries, num, held_dim, device=device),
        torch.empty_like(logits),
    )


def _uniforms(num_queries: int, num: int, generator: torch.Generator, systematic: bool) -> Tensor:
    """The random numbers of draws: four per draw, or the first of a query's equally spaced ones."""
    shape = (num_queries, 1) if systematic else (num_queries, num, 4)
    return torch.rand(*shape, dtype=torch.float64, device=generator.device, generator=generator)


def _exclusions(
    excluded: Ragged | None, num_items: int, held: HeldKeys | None, device: torch.device
) -> _Exclusions:
    if excluded is None:
        return _Exclusions(_none(device), 0, _none(device))
    width = excluded.width or 0
    if 1 <= width <= _MAX_WIDTH:
        return _Exclusions(excluded.values.contiguous(), width, _none(device))
    if held is not None:
        excluded = excluded.with_values(rows_holding(excluded.values, held.keys, held.lists))
    return _Exclusions(_none(device), 0, excluded.pairs(num_items))


@lru_cache(maxsize=16)
def _none(device: torch.device) -> Int64[Tensor, " 0"]:
    with torch.inference_mode(False):
        return torch.empty(0, dtype=torch.int64, device=device)


@lru_cache(maxsize=64)
def _depth(dim: int) -> int:
    """Elements of a vector that are copied per step."""
    return min(_MAX_QUERY_DEPTH, power_of_two(dim))


def _block_masses(
    queries: Tensor, items: ScoredItems, tuning: SoftmaxTuning
) -> Float32[Tensor, "num_queries num_blocks"]:
    num_blocks = ceil_div(items.num_items, tuning.block)
    masses = torch.empty(len(queries), num_blocks, device=queries.device)
    precision = "tf32x3" if items.vectors.dtype == torch.float32 else "tf32"
    constants: dict[str, Any] = {"BLOCK": tuning.block, "PRECISION": precision}
    launch_over_tiles(
        block_masses_kernel, queries, items, tuning, (masses,), num_blocks, **constants
    )
    return masses


@lru_cache(maxsize=256)
def group_sizes(num_blocks: int) -> tuple[int, int]:
    """Blocks per group and the number of groups, balanced so that a draw reads few of each."""
    group = _MIN_GROUP
    while num_blocks > group * _MAX_GROUPS:
        group *= 2
    return group, -(-num_blocks // group)
