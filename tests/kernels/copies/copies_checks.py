"""Caches in random states, and each Triton pass beside its torch reference."""

from dataclasses import fields, replace

import torch

from outsize.kernels.copies import compaction, due, local_lines, passes, survey
from outsize.kernels.copies.compaction_triton import marked_places_by_triton
from outsize.kernels.copies.due_triton import (
    clear_by_triton,
    mark_due_by_triton,
    pending_by_triton,
)
from outsize.kernels.copies.lines_triton import (
    add_by_triton,
    read_through_by_triton,
    settle_by_triton,
)
from outsize.kernels.copies.local_lines import OwnerLines
from outsize.kernels.copies.passes import CopyLines
from outsize.kernels.copies.survey import LAG_OFFSET, Prices
from outsize.kernels.copies.survey_triton import survey_by_triton

NUM_ROWS = 400


def random_cache(seed, num_slots, dim, width, dtype=torch.float32):
    """A cache in which some copies are invalid, some dirty, some with a leftover."""
    draw = torch.Generator().manual_seed(seed)

    def numbers(low, high, kind):
        return torch.randint(low, high, (num_slots,), generator=draw).to(kind)

    squares = torch.rand(num_slots, width, generator=draw) if width else None
    return CopyLines(
        torch.randn(num_slots, dim, generator=draw).to(dtype),
        numbers(-1, 6, torch.int64),
        numbers(0, 4, torch.int32),
        torch.randn(num_slots, dim, generator=draw),
        squares,
        numbers(0, 2, torch.bool),
        numbers(10, 20, torch.int32),
        numbers(-40, 40, torch.int64),
    )


def random_owner(seed, dim, width, dtype=torch.float32):
    draw = torch.Generator().manual_seed(seed)
    return OwnerLines(
        torch.randn(NUM_ROWS, dim, generator=draw).to(dtype),
        torch.randint(0, 9, (NUM_ROWS,), generator=draw, dtype=torch.int32),
        {"sum": torch.rand(NUM_ROWS, width, generator=draw)},
    )


def random_slots(seed, num, num_slots):
    """Distinct slots, −1 for some."""
    draw = torch.Generator().manual_seed(seed)
    slots = torch.randperm(max(num, num_slots), generator=draw)[:num]
    return torch.where(torch.rand(num, generator=draw) < 0.3, -1, slots % num_slots)


def copied(cache):
    return replace(
        cache,
        **{
            f.name: None if (v := getattr(cache, f.name)) is None else v.clone()
            for f in fields(cache)
        },
    )


def moved(value, device):
    if isinstance(value, CopyLines):
        return CopyLines(*(moved(getattr(value, f.name), device) for f in fields(value)))
    if isinstance(value, OwnerLines):
        return OwnerLines(*(moved(part, device) for part in value))
    if isinstance(value, dict):
        return {name: part.to(device) for name, part in value.items()}
    return value.to(device) if isinstance(value, torch.Tensor) else value


def assert_same(cache, other):
    for field in fields(cache):
        one, two = getattr(cache, field.name), getattr(other, field.name)
        assert (one is None) == (two is None)
        if one is not None:
            assert torch.equal(one, two.cpu()), field.name


def check_survey(device, num=50, num_slots=80, bounds=(2, 1)):
    cache, owner = random_cache(3, num_slots, 4, 1), random_owner(4, 4, 1)
    found = random_slots(5, num, num_slots)
    draw = torch.Generator().manual_seed(6)
    ids = torch.randperm(NUM_ROWS, generator=draw)[:num].sort().values
    prices = Prices(16, 4, 16)
    given = moved(copied(cache), device)
    arguments = (found, owner.clocks, ids)
    expected = survey.survey(cache, *arguments, *bounds, prices)
    arguments = [part.to(device) for part in arguments]
    seen = survey_by_triton(given, *arguments, *bounds, prices, LAG_OFFSET)
    for one, two in zip(expected, seen, strict=True):
        assert torch.equal(one, two.cpu())
    assert_same(cache, given)


def check_add(device, dim, width, divisor, num=50, num_slots=80):
    cache = random_cache(1, num_slots, dim, width)
    slots = random_slots(2, num, num_slots)
    draw = torch.Generator().manual_seed(3)
    gradients = torch.randn(num, dim, generator=draw)
    squares = torch.rand(num, width, generator=draw) if width else None
    ticks, places = torch.arange(num), (slots >= 0).nonzero().flatten()
    given = moved(copied(cache), device)
    expected = passes._add_by_torch(cache, slots, gradients, ticks, squares, divisor, 7, places)
    slots, gradients, squares, places = (
        moved(part, device) for part in (slots, gradients, squares, places)
    )
    found = add_by_triton(given, slots, gradients, squares, divisor, 7, places)
    assert torch.equal(expected.gradients, found.cpu())
    assert_same(cache, given)


def check_settle(device, dim, width, keeps_error, num_slots=80):
    cache = random_cache(1, num_slots, dim, width)
    slots = (random_slots(2, 50, num_slots) >= 0).nonzero().flatten()
    draw = torch.Generator().manual_seed(3)
    gradients = torch.randn(slots.shape[0], dim, generator=draw)
    sent = torch.where(slots.unsqueeze(1) % 2 == 0, gradients, gradients.bfloat16().float())
    ticks = slots % 3
    given = moved(copied(cache), device)
    passes.settle(cache, slots, gradients, ticks, sent, 9, keeps_error=keeps_error)
    slots, gradients, ticks, sent = (part.to(device) for part in (slots, gradients, ticks, sent))
    settle_by_triton(given, slots, gradients, ticks, sent, 9, keeps_error)
    assert_same(cache, given)


def check_read_through(device, dim, width, dtype=torch.float32, num=50, num_slots=80):
    cache, owner = random_cache(1, num_slots, dim, 0, dtype), random_owner(2, dim, width, dtype)
    slots = random_slots(3, num, num_slots)
    draw = torch.Generator().manual_seed(4)
    ids = torch.randperm(NUM_ROWS, generator=draw)[:num].sort().values
    stale = (torch.rand(num, generator=draw) < 0.5) | (slots < 0)
    state = {"sum": torch.rand(num_slots, width, generator=draw)}
    num_refreshed = int((stale & (slots >= 0)).sum())
    given = moved((copied(cache)), device)
    given_state = {"sum": state["sum"].clone().to(device)}
    rows, clocks = local_lines.read_through(cache, state, owner, ids, slots, stale, num_refreshed)
    owner, ids, slots, stale = (moved(part, device) for part in (owner, ids, slots, stale))
    found, seen = read_through_by_triton(
        given, given_state, owner, ids, slots, stale, num_refreshed
    )
    assert torch.equal(rows, found.cpu())
    assert torch.equal(clocks, seen.cpu())
    assert torch.equal(state["sum"], given_state["sum"].cpu())
    assert_same(cache, given)


def check_marked_places(device, num, share):
    draw = torch.Generator().manual_seed(num)
    mask = torch.rand(num, generator=draw) < share
    mask[num // 2] = True
    count = int(mask.sum())
    expected = mask.nonzero().flatten()
    assert torch.equal(expected, compaction.marked_places(mask, count))
    assert torch.equal(expected, marked_places_by_triton(mask.to(device), count).cpu())


def check_due(device, dim, width, bound, num_slots=80):
    cache, held = random_cache(1, num_slots, dim, width), torch.arange(num_slots) * 7 + 3
    touched = random_slots(2, 50, num_slots)
    touched = touched[touched >= 0]
    is_evicted = torch.arange(num_slots) % 3 == 0
    given = moved(copied(cache), device)
    for evicted in (None, is_evicted):
        counts = torch.tensor([5])
        expected = due.mark_due(cache, touched, bound, evicted, counts)
        assert int(counts) == 5 + int(expected.sum())
        count = torch.tensor([5], device=device)
        found = mark_due_by_triton(
            given.ticks, touched.to(device), bound, moved(evicted, device), count
        )
        assert torch.equal(expected, found.cpu())
        assert torch.equal(counts, count.cpu())
    places = torch.arange(0, touched.shape[0], 3)
    expected = due.pending_at(cache, held, touched, places)
    arguments = (held, touched, places)
    found = pending_by_triton(given, *(part.to(device) for part in arguments))
    for one, two in zip(expected, found, strict=True):
        assert (one is None) == (two is None)
        assert one is None or torch.equal(one, two.cpu())
    assert_same(cache, given)
    passes.clear(cache, touched)
    clear_by_triton(given, touched.to(device))
    assert_same(cache, given)


def check_copies(device):
    """Every pass, at odd widths, in every variant."""
    for bounds in ((2, 1), (0, 0), (None, float("inf"))):
        check_survey(device, bounds=bounds)
    for dim, width in ((3, 3), (16, 1), (5, 0)):
        for divisor in (None, 1, 3):
            check_add(device, dim, width, divisor)
        for keeps_error in (False, True):
            check_settle(device, dim, width, keeps_error)
        check_read_through(device, dim, max(1, width))
    check_read_through(device, 6, 1, torch.bfloat16)
    for num, share in ((1, 0.5), (1024, 0.9), (5000, 0.3), (9300, 0.01)):
        check_marked_places(device, num, share)
    for dim, width, bound in ((3, 3, 1), (16, 1, 0), (5, 0, float("inf"))):
        check_due(device, dim, width, bound)
