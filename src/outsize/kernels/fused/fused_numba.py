"""The backward pass of rows with their update: gradients are summed and used row by row."""

from __future__ import annotations

from typing import no_type_check

import numba
from numpy import uint32, uint64

from outsize.kernels.compiled import kernel
from outsize.kernels.fused.buckets_numba import group_words, sort_words
from outsize.kernels.gather.lines_numba import (
    rows_ahead,
    sum_lines,
    updates_ahead,
)
from outsize.kernels.lines_numba import add_line, copy_line
from outsize.kernels.memory_numba import prefetch, prefetch_line
from outsize.kernels.rows.rules_numba import mean_square, prefetch_state, update_row
from outsize.kernels.shared_numba import take_next
from outsize.kernels.vectors_numba import address_of, load_int64


@kernel(
    "void(int64, int64, float32[:, ::1], int64[::1], int64, int64[::1], int64[::1], int64[::1],"
    " float32[:, ::1], uint32[::1])"
)
@no_type_check
def read_columns(part, parts, rows, columns, num, bounds, offsets, ids, out, num_bad):
    """Check ids, add the offset of their column, and copy their rows.

    `columns` are the addresses of `num` ids each. Rows are written to `ids`, by example and column,
    and their values to `out`. A part counts ids out of bounds, which read row 0, in `num_bad`.
    """
    width = len(columns)
    dim = rows.shape[1]
    source, target = address_of(rows), address_of(out)
    tile = max(rows_ahead(dim) // width, 1)
    begin = num * part // parts
    end = num * (part + 1) // parts
    bad = uint32(0)
    for first in range(begin, end + tile, tile):  # prefetch one tile, and copy the one before
        for i in range(first, min(first + tile, end)):
            for j in range(width):
                found = load_int64(columns[j] + 8 * i)
                is_bad = uint64(found) >= uint64(bounds[j])  # a negative id is a very large one
                bad += uint32(is_bad)
                row = 0 if is_bad else found + offsets[j]
                ids[i * width + j] = row
                prefetch_line(source + 4 * row * dim, dim)
        for place in range(max(first - tile, begin) * width, min(first, end) * width):
            copy_line(source + 4 * ids[place] * dim, target + 4 * place * dim, dim)
    num_bad[part] = bad


@kernel("void(int64, int64, uint32[::1], uint32, uint32[::1])")
@no_type_check
def count_large(part, parts, bits, limit, counts):
    """How many float32 of a part have a magnitude of at least `limit`, given as bits."""
    n = len(bits)
    own = bits[n * part // parts : n * (part + 1) // parts]
    magnitude = uint32(0x7FFFFFFF)
    num_large = uint32(0)
    for i in range(len(own)):
        num_large += uint32((own[i] & magnitude) >= limit)
    counts[part] = num_large


@kernel(
    "void(int64, int64, int64, float32[:, ::1], float32[:, ::1], float32[:, ::1], float32[:, ::1],"
    " int32[::1], float32[::1], float32[:, ::1], int32[::1], float32[::1], uint64[::1], int32[::1],"
    " uint64, int64, int64, int64, uint32[:, :, ::1], uint64[:, ::1], int64[:, ::1],"
    " int32[:, :, ::1], float32[:, :, ::1], int64[::1], float64[::1])"
)
@no_type_check
def train_buckets(
    part, parts, rule, rows, first, second, third, clocks, settings, gradients, lines, scales,
    words, edges, inverse, bits, bucket_bits, block, counts, spare, found, places, totals,
    taken, norms,
):  # fmt: skip
    """Group the ids of every bucket, sum the gradients of each row, and update it.

    Rows with one occurrence and others are updated in two loops, whose branches can be predicted.

    `lines` and `scales` are those of each id, or empty if ids have a line each, and scales of 1.
    `words` are the ids by bucket, `edges` where buckets begin in them and the last one ends,
    `inverse` undoes the factor of the hash, and `block` is that of `sum_by_row`. `counts`, `spare`,
    `found`, `places` and `totals` are memory for each part: counters to sort by, words, rows, their
    ends with places and rows of two kinds, and two lines. A part takes the next bucket from
    `taken`, as buckets differ in the work they are. `norms` receives, for each bucket, the sum of
    the squares of its rows' gradients.
    """
    dim = rows.shape[1]
    table, source, own_settings = address_of(rows), address_of(gradients), address_of(settings)
    one, two, three = address_of(first), address_of(second), address_of(third)
    line_of = address_of(lines) if len(lines) > 0 else 0
    scale_of = address_of(scales) if len(scales) > 0 else 0
    own_counts, own_spare, own_rows = counts[part], spare[part], found[part]
    ends, order = places[part, 0], places[part, 1]
    single, repeated = places[part, 2], places[part, 3]
    sorted_places = address_of(order)
    distance = updates_ahead(dim)
    total, more = address_of(totals[part, 0]), address_of(totals[part, 1])
    bucket = take_next(taken)
    while bucket < len(edges) - 1:
        own = words[edges[bucket] : edges[bucket + 1]]
        sort_words(own, own_spare, own_counts, bits - bucket_bits)
        num = group_words(own, inverse, bits, own_rows, ends, order)
        num_single, num_repeated, begin = 0, 0, 0
        norm = 0.0
        for k in range(num):
            end = ends[k]
            is_single = end - begin == 1 and scale_of == 0
            single[num_single] = k
            repeated[num_repeated] = k
            num_single += is_single
            num_repeated += not is_single
            begin = end
        for n in range(num_repeated):
            if n + 8 < num_repeated:
                ahead = own_rows[repeated[n + 8]]
                prefetch_state(rule, dim, ahead, table, one, two, three)
                prefetch(clocks, ahead)
            k = repeated[n]
            end = ends[k]
            place = ends[k - 1] if k > 0 else 0
            edge = min(place + block, end)
            sum_lines(source, dim, sorted_places, place, edge, line_of, scale_of, total)
            while edge < end:
                place = edge
                edge = min(place + block, end)
                sum_lines(source, dim, sorted_places, place, edge, line_of, scale_of, more)
                add_line(more, total, dim)
            row = own_rows[k]
            clocks[row] += 1
            norm += mean_square(total, dim)
            update_row(rule, dim, row, table, one, two, three, total, 0, own_settings)
        for n in range(num_single):
            if n + distance < num_single:
                k = single[n + distance]
                ahead = own_rows[k]
                prefetch_state(rule, dim, ahead, table, one, two, three)
                prefetch(clocks, ahead)
                line = numba.int64(order[ends[k] - 1])
                if line_of != 0:
                    line = numba.int64(lines[line])
                prefetch_line(source + 4 * line * dim, dim)
            k = single[n]
            row = own_rows[k]
            line = numba.int64(order[ends[k] - 1])
            if line_of != 0:
                line = numba.int64(lines[line])
            clocks[row] += 1
            norm += mean_square(source + 4 * line * dim, dim)
            update_row(
                rule, dim, row, table, one, two, three, source + 4 * line * dim, 0, own_settings
            )
        norms[bucket] = norm * dim
        bucket = take_next(taken)
