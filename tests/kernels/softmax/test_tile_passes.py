"""Compiled passes over tiles of logits: what torch computes, up to rounding."""

import math

import pytest
import torch
from draw_checks import by_numba
from hypothesis import given, settings
from hypothesis import strategies as st

from outsize.kernels.softmax import tile_passes
from outsize.kernels.softmax.logit_tiles import LogitTile
from outsize.kernels.softmax.tile_passes import BLOCK, BlockMasses, exponentiate
from outsize.kernels.softmax.windows import window_products

pytest.importorskip("numba")


def masses(logits, widths):
    """Masses of blocks, weights and peaks of tiles of the given widths."""
    num_blocks = -(-logits.shape[1] // BLOCK) + 1
    found, weighted, start = BlockMasses(logits, logits.shape[1], num_blocks), [], 0
    for width in widths:
        items = slice(start, start + width)
        own = logits[:, items].clone()
        weights, peaks = found.add(LogitTile(slice(0, len(logits)), items, own, own.t()))
        weighted.append((weights * peaks.exp()).flatten(1)[:, :width])
        start += width
    return found.finish(), torch.cat(weighted, dim=1)


@settings(max_examples=60, deadline=None)
@given(
    num_queries=st.integers(1, 5),
    num_full=st.integers(0, 3),
    num_last=st.integers(1, 200),
    spread=st.sampled_from([0.0, 1.0, 20.0]),
    num_excluded=st.integers(0, 60),
    seed=st.integers(0, 1000),
)
def test_masses_of_blocks_are_those_of_torch(
    num_queries, num_full, num_last, spread, num_excluded, seed
):
    draw = torch.Generator().manual_seed(seed)
    widths = [*[256] * num_full, num_last]
    logits = spread * torch.randn(num_queries, sum(widths), generator=draw)
    logits[:, torch.randint(0, sum(widths), (num_excluded,), generator=draw)] = -torch.inf
    expected, exponentials = masses(logits, widths)
    found, found_exponentials = by_numba(masses)(logits, widths)
    # Blocks more than exp(87) times lighter than the heaviest item may be without mass.
    counts = expected > expected.amax(dim=1, keepdim=True).clamp(min=-1e30) - 80
    torch.testing.assert_close(found[counts], expected[counts], rtol=1e-5, atol=1e-5)
    assert (found[~counts] <= expected[~counts] + 1e-4).all()
    largest = exponentials.amax().item()
    torch.testing.assert_close(found_exponentials, exponentials, rtol=1e-4, atol=1e-30 * largest)


@pytest.mark.parametrize("bad", [math.nan, -math.nan, math.inf])
def test_a_logit_that_is_no_number_makes_the_mass_nan(bad):
    logits = torch.zeros(3, 300)
    logits[1, 270] = bad
    found, _ = by_numba(masses)(logits, [256, 44])
    assert found[1, 270 // BLOCK].isnan()
    assert found[[0, 2], :-1].isfinite().all()


def test_a_line_without_items_has_no_mass():
    logits = torch.full((2, 40), -torch.inf)
    logits[1, 39] = -1e38
    found, _ = by_numba(masses)(logits, [40])
    assert (found[0] == -torch.inf).all()
    assert found[1].tolist() == [-torch.inf, torch.tensor(-1e38).item(), -torch.inf]


def test_compiled_exponentials_are_exact_to_two_roundings():
    logits = torch.linspace(-87, 1, 200_001).view(1, -1)
    exact = logits.double().exp()
    found = by_numba(exponentiate)(logits.clone(), torch.zeros(1)).double()
    assert ((found - exact) / exact).abs().max() < 2**-23
    ends = torch.tensor([[-torch.inf, -200.0, 0.0, math.nan]])
    found = by_numba(exponentiate)(ends.repeat(2, 1), torch.tensor([0.0, torch.inf]))
    assert found[0, :3].tolist() == [0, 0, 1]
    assert found[1, :3].tolist() == [0, 0, 0]
    assert found[:, 3].isnan().all()


def test_masses_do_not_depend_on_the_number_of_threads(monkeypatch):
    logits = torch.randn(7, 300)
    found = []
    for parts in (1, 3):
        monkeypatch.setattr(tile_passes, "num_parts", lambda *_, parts=parts: parts)
        found.append(by_numba(masses)(logits, [256, 44])[0])
    assert torch.equal(*found)


@settings(max_examples=40, deadline=None)
@given(
    num_pairs=st.integers(0, 9),
    dim=st.integers(1, 40),
    num_items=st.integers(1, 50),
    is_int8=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_products_of_windows_are_those_of_torch(num_pairs, dim, num_items, is_int8, seed):
    draw = torch.Generator().manual_seed(seed)
    queries = torch.randn(3, dim, generator=draw)
    vectors = 30 * torch.randn(num_items, dim, generator=draw)
    vectors = vectors.round().clamp(-127, 127).to(torch.int8) if is_int8 else vectors
    width = min(BLOCK, num_items)
    lines = torch.randint(0, 3, (num_pairs,), generator=draw)
    starts = torch.randint(0, num_items - width + 1, (num_pairs,), generator=draw)
    expected = window_products(queries, lines, vectors, starts, width)
    found = by_numba(window_products)(queries, lines, vectors, starts, width)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-3)
