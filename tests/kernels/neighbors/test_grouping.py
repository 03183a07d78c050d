"""Edges are grouped by target and sorted, the same by compiled kernels as by numpy."""

import numpy as np
import pytest

from outsize.kernels.neighbors import grouping
from outsize.kernels.neighbors.grouping import place_edges, sort_groups


@pytest.fixture(params=["numba", "torch"])
def way(request, monkeypatch):
    monkeypatch.setenv("OUTSIZE_KERNELS", request.param)
    return request.param


def placed(sources, targets, num_targets, dtype=np.int32, chunk=7):
    starts = np.concatenate(([0], np.bincount(targets, minlength=num_targets).cumsum()))
    out, places = np.empty(len(sources), dtype), starts[:-1].copy()
    for first in range(0, len(sources), chunk):
        part = slice(first, first + chunk)
        place_edges(sources[part], targets[part], places, out)
    assert np.array_equal(places, starts[1:])
    return starts, out


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("merge", [False, True])
@pytest.mark.parametrize(("num_edges", "num_targets"), [(0, 4), (1, 1), (500, 9), (4_000, 60)])
def test_edges_are_grouped_and_sorted(way, dtype, merge, num_edges, num_targets, monkeypatch):
    monkeypatch.setattr(grouping, "_EDGES_PER_BLOCK", 64)
    draw = np.random.default_rng(num_edges)
    sources = draw.integers(0, 50, num_edges)
    targets = np.minimum(draw.geometric(0.1, num_edges), num_targets) - 1
    starts, out = placed(sources, targets, num_targets, dtype)
    left = sort_groups(starts, out, merge=merge)
    wanted = sorted(zip(targets.tolist(), sources.tolist(), strict=True))
    if merge:
        wanted = sorted(set(wanted))
    assert left == starts[-1] == len(wanted)
    owners = np.repeat(np.arange(num_targets), np.diff(starts))
    assert list(zip(owners.tolist(), out[:left].tolist(), strict=True)) == wanted


def test_edges_keep_their_order_until_they_are_sorted(way):
    sources, targets = np.array([5, 3, 4, 1, 2]), np.array([1, 0, 1, 0, 1])
    starts, out = placed(sources, targets, 3, chunk=2)
    assert starts.tolist() == [0, 2, 5, 5]
    assert out.tolist() == [3, 1, 5, 4, 2]
