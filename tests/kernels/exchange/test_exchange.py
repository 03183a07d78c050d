"""Compiled passes over the ids and lines of a round return what torch returns."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outsize.kernels.exchange.routes import (
    by_owner,
    in_order_of_request,
    modulo,
    newer_rows,
    quotients,
)
from outsize.kernels.exchange.sums import put_lines, sum_lines, union

pytest.importorskip("numba")
SEEDS = st.integers(0, 2**16)


def by_both(work):
    """What work returns with compiled kernels and with torch."""
    found = []
    for engine in ("numba", "torch"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("OUTSIZE_KERNELS", engine)
            found.append(work())
    return found


def some_ids(num, most, draw):
    return torch.randperm(most, generator=draw)[:num].sort().values


@given(SEEDS, st.sampled_from([0, 1, 5, 60]), st.sampled_from([1, 2, 3, 4, 7]), st.integers(0, 2))
@settings(max_examples=30, deadline=None)
def test_ids_are_routed_to_their_owners(seed, num, num_owners, num_idle):
    ids = some_ids(num, 90, torch.Generator().manual_seed(seed)) + 2**33
    results = by_both(lambda: by_owner(ids, num_owners, num_owners + num_idle))
    for order, sizes in results:
        assert len(sizes) == num_owners + num_idle
        for owner, own in enumerate(order.split(sizes)):
            assert torch.equal(own, (ids % num_owners == owner).nonzero().flatten())
    assert torch.equal(modulo(ids, num_owners), ids % num_owners)
    assert torch.equal(quotients(ids, num_owners), ids // num_owners)


@given(SEEDS, st.lists(st.sampled_from([0, 1, 4, 20]), min_size=1, max_size=4))
@settings(max_examples=30, deadline=None)
def test_rows_with_a_newer_clock_are_found_request_by_request(seed, sizes):
    draw = torch.Generator().manual_seed(seed)
    clocks = torch.randint(0, 6, (30,), generator=draw, dtype=torch.int32)
    places = torch.cat([some_ids(size, 30, draw) for size in sizes])
    asked = torch.randint(-1, 6, places.shape, generator=draw)
    results = by_both(lambda: newer_rows(clocks, places, asked, sizes))
    expected = clocks[places] > asked
    for stale, newer, sent, behind in results:
        assert torch.equal(stale, expected)
        assert torch.equal(newer, places[expected])
        for i, (own, lag) in enumerate(
            zip(stale.split(sizes), (clocks[places] - asked).split(sizes), strict=True)
        ):
            assert sent[i] == int(own.sum())
            assert behind[i] == (None if bool(own.all()) else int(lag[~own].max()))


@given(SEEDS, st.sampled_from([0, 1, 6, 50]))
@settings(max_examples=30, deadline=None)
def test_replies_come_in_the_order_of_the_request(seed, num):
    draw = torch.Generator().manual_seed(seed)
    order = torch.randperm(num, generator=draw)
    stale = torch.rand(num, generator=draw) < 0.4
    for flags, lines in by_both(lambda: in_order_of_request(order, stale)):
        assert torch.equal(flags[order], stale)
        assert torch.equal(flags.nonzero().flatten()[lines], order[stale])


@given(
    SEEDS,
    st.lists(st.sampled_from([0, 1, 4, 20]), min_size=1, max_size=4),
    st.sampled_from([1, 3, 16]),
    st.sampled_from([1, 3, 4]),
)
@settings(max_examples=30, deadline=None)
def test_sums_have_the_bits_of_torch(seed, sizes, width, divisor):
    draw = torch.Generator().manual_seed(seed)
    lists = [some_ids(size, 25, draw) for size in sizes]
    parts = [torch.randn(size, width, generator=draw) * -0.0 for size in sizes[:1]]
    parts += [torch.randn(size, width, generator=draw) for size in sizes[1:]]

    def work():
        ids, places, counts = union(lists)
        return ids, places, counts, sum_lines(parts, places.split(sizes), counts, divisor)

    compiled, plain = by_both(work)
    for one, other in zip(compiled, plain, strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)
    assert torch.equal(compiled[-1].signbit(), plain[-1].signbit())
    assert torch.equal(compiled[0], torch.cat(lists).unique())


@given(SEEDS, st.sampled_from([0, 1, 9]), st.sampled_from([1, 5]))
@settings(max_examples=20, deadline=None)
def test_lines_are_put_in_their_places(seed, num, width):
    draw = torch.Generator().manual_seed(seed)
    values, places = torch.randn(num, width), torch.randperm(12, generator=draw)[:num]

    def work():
        lines = torch.zeros(12, width)
        put_lines(lines, places, values)
        return lines

    compiled, plain = by_both(work)
    assert torch.equal(compiled, plain)
    assert torch.equal(plain[places], values)
