"""Merging of several updates into one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Float, Int32, Int64
from torch import Tensor

from outsize.contracts import RowLayout, RowUpdate
from outsize.kernels.exchange.sums import add_two, sum_lines, union
from outsize.kernels.rows.updates import UpdateRule


def empty_update(layout: RowLayout, device: torch.device) -> RowUpdate:
    """An update without rows."""
    none = torch.empty(0, dtype=torch.int64, device=device)
    return RowUpdate(none, tuple(torch.empty(0, g.dim, device=device) for g in layout.groups), none)


def merge_updates(
    updates: Sequence[RowUpdate], layout: RowLayout, rule: UpdateRule | None
) -> RowUpdate:
    """The sum of one or more updates, added in the order given; ticks are summed, too.

    `rule` defines the squares that are summed with the gradients.
    """
    return _merge(updates, layout, rule, 1)


def _merge(
    updates: Sequence[RowUpdate], layout: RowLayout, rule: UpdateRule | None, divisor: int
) -> RowUpdate:
    """`merge_updates`, with gradients divided by a number; squares are not."""
    updates = [update for update in updates if update.ids.numel()] or list(updates[:1])
    if len(updates) == 1:
        gradients = updates[0].gradients
        if divisor > 1:
            gradients = tuple(part / divisor for part in gradients)
        return replace(updates[0], gradients=gradients)
    if len(updates) == 2 and divisor == 1:
        added = _add_two(updates[0], updates[1], layout, rule)
        if added is not None:
            return added
    ids, inverse, counts = union([u.ids for u in updates])
    places = inverse.split([update.ids.shape[0] for update in updates])
    ticks = torch.zeros_like(ids).index_add_(0, inverse, torch.cat([u.ticks for u in updates]))
    gradients = _sum([u.gradients for u in updates], places, layout, ids, counts, divisor)
    squares = [_squares_of(u, rule) for u in updates]
    known = [part for part in squares if part is not None]
    summed = None
    if len(known) == len(updates):
        summed = _sum(known, places, layout, ids, counts)
    return RowUpdate(ids, gradients, ticks, summed, _any_exact(updates, places, ids))


def _add_two(
    first: RowUpdate, second: RowUpdate, layout: RowLayout, rule: UpdateRule | None
) -> RowUpdate | None:
    """The sum of two updates in one pass; `None` if no kernel can."""
    kind = None if rule is None else rule.kernel_square()
    if kind is None or not layout.is_one_group:
        return None
    lines, others = (
        (u.ids, u.ticks, u.gradients[0], None if u.squares is None else u.squares[0])
        for u in (first, second)
    )
    found = add_two(lines, others, kind)
    if found is None:
        return None
    ids, ticks, gradients, squares, places = found
    return RowUpdate(
        ids, (gradients,), ticks, None if squares is None else (squares,),
        _any_exact((first, second), places, ids),
    )  # fmt: skip


def average_over_workers(
    updates: Sequence[RowUpdate], num_workers: int, layout: RowLayout, rule: UpdateRule | None
) -> RowUpdate:
    """The mean of what all workers push in one round; the rule is applied to it once.

    If every worker that pushes a row pushes a single batch, the row is updated as one process would
    update it on the combined batch: Adagrad adds the square of the mean. If any push sums several
    batches, each batch of each worker counts separately: Adagrad adds Σ (g/N)².

    Args:
        updates: One per worker, in the order of ranks; empty ones may be left out.
        num_workers: N, including workers that push nothing.
        layout: The layout of the store.
        rule: The rule that will apply the result.
    """
    has_squares = rule is not None and any(update.squares is not None for update in updates)
    summed = [update.ids[update.ticks > 1] for update in updates] if has_squares else []
    if rule is None or not any(ids.shape[0] for ids in summed):
        merged = _merge([replace(u, squares=None) for u in updates], layout, None, num_workers)
        return RowUpdate(merged.ids, merged.gradients, merged.ticks)
    squared = [replace(u, squares=_squares_of(u, rule)) for u in updates]
    merged = _merge(squared, layout, rule, num_workers)
    ids = merged.ids
    several = torch.zeros_like(ids, dtype=torch.bool)
    several[torch.searchsorted(ids, torch.cat(summed))] = True
    squares = squares_for(rule, merged.gradients, merged.squares, several, num_workers)
    return RowUpdate(ids, merged.gradients, merged.ticks, squares)


def squares_for(
    rule: UpdateRule,
    gradients: tuple[Float[Tensor, "_ _"], ...],
    summed: tuple[Float[Tensor, "_ _"], ...] | None,
    several: Tensor,
    num_workers: int,
) -> tuple[Float[Tensor, "_ _"], ...] | None:
    """Σ (g/N)² for rows whose sum covers several batches, the square of the mean for others."""
    if summed is None:
        return None
    flags = several.split([part.shape[0] for part in gradients])
    found: list[Tensor] = []
    for part, total, flag in zip(gradients, summed, flags, strict=True):
        of_mean = rule.square(part)
        assert of_mean is not None
        found.append(torch.where(flag.unsqueeze(1), total / num_workers**2, of_mean))
    return tuple(found)


def _squares_of(
    update: RowUpdate, rule: UpdateRule | None
) -> tuple[Float[Tensor, "_ _"], ...] | None:
    if rule is None or update.squares is not None:
        return update.squares
    squares = tuple(rule.square(part) for part in update.gradients)
    known = tuple(part for part in squares if part is not None)
    return known if len(known) == len(squares) else None


def _sum(
    parts: Sequence[tuple[Tensor, ...]],
    places: Sequence[Int64[Tensor, " _"]],
    layout: RowLayout,
    ids: Int64[Tensor, " n"],
    counts: Int32[Tensor, " n"],
    divisor: int = 1,
) -> tuple[Tensor, ...]:
    """Sum tensors with one line per row, group by group, in the order given.

    An update holds each row once, so no two lines of one addition collide: the sum is deterministic
    on every device. `counts` says how many updates hold each row; sums are divided by `divisor`.
    """
    if len(layout.groups) == 1:
        return (sum_lines([part[0] for part in parts], places, counts, divisor),)
    sizes = layout.group_sizes(ids)
    starts = [sum(sizes[:group]) for group in range(len(sizes))]
    totals: list[Tensor] = []
    for group, (start, size) in enumerate(zip(starts, sizes, strict=True)):
        lines: list[Tensor] = []
        for part, place in zip(parts, places, strict=True):
            before = sum(other.shape[0] for other in part[:group])
            lines.append(place[before : before + part[group].shape[0]] - start)
        own = counts[start : start + size]
        totals.append(sum_lines([part[group] for part in parts], lines, own, divisor))
    return tuple(totals)


def _any_exact(
    updates: Sequence[RowUpdate], places: Sequence[Tensor], ids: Tensor
) -> Tensor | None:
    if all(update.exact is None for update in updates):
        return None
    exact = torch.zeros_like(ids, dtype=torch.bool)
    for update, place in zip(updates, places, strict=True):
        if update.exact is not None:
            exact[place[update.exact]] = True
    return exact
