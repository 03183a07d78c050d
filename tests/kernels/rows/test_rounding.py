"""Rounding at random: right in the mean, one of two neighbours, the same wherever it is done."""

import math

import pytest
import torch

from outsize.kernels.rows.rounding import round_at_random, rounding_keys

HALF = [torch.bfloat16, torch.float16]


def keys_for(num, clock=1, ticks=1, seed=0):
    ids = torch.arange(num)
    return rounding_keys(seed, ids, torch.full_like(ids, clock), torch.full_like(ids, ticks))


@pytest.mark.parametrize("dtype", HALF)
def test_the_mean_of_rounded_numbers_is_the_number(dtype):
    values = torch.tensor([0.3, -0.3, 1.0001, -7.77, 1e-3, -2.9e-8, 5e-5])
    num = 100_000
    rounded = round_at_random(values.expand(num, -1), dtype, keys_for(num)).double()
    below, above = rounded.amin(dim=0), rounded.amax(dim=0)
    assert (below < above).all()
    error = (rounded.mean(dim=0) - values).abs()
    assert (error < 5 * (above - below) / 2 / math.sqrt(num)).all()


@pytest.mark.parametrize("dtype", HALF)
def test_a_number_becomes_one_of_its_two_neighbours(dtype):
    values = torch.randn(1000, 7, generator=torch.Generator().manual_seed(0))
    values *= torch.logspace(-9, 4, 1000).unsqueeze(1)
    rounded = round_at_random(values, dtype, keys_for(1000))
    nearest = values.to(dtype)
    steps = (rounded.view(torch.int16).int() - nearest.view(torch.int16).int()).abs()
    assert steps.max() == 1
    between = torch.minimum(rounded.float(), nearest.float()) <= values
    assert (between & (values <= torch.maximum(rounded.float(), nearest.float())))[steps > 0].all()


@pytest.mark.parametrize("dtype", HALF)
def test_numbers_that_need_no_rounding_stay(dtype):
    values = torch.tensor([[0.0, -0.0, 1.0, -0.5, 6.0, math.inf, -math.inf, math.nan]])
    rounded = round_at_random(values.expand(500, -1), dtype, keys_for(500))
    assert torch.equal(rounded[:, :-1], values.to(dtype)[:, :-1].expand(500, -1))
    assert rounded[:, -1].isnan().all()


@pytest.mark.parametrize("dtype", HALF)
def test_numbers_beyond_the_range_become_the_largest(dtype):
    values = torch.tensor([[65_519.0, -1e30, 3.4028e38]]).expand(500, -1)
    if dtype == torch.bfloat16:
        values = values[:, 2:]
    rounded = round_at_random(values, dtype, keys_for(500)).float()
    assert torch.equal(rounded.abs(), torch.full_like(values, torch.finfo(dtype).max))
    assert torch.equal(rounded.sign(), values.sign())


def test_draws_depend_on_seed_row_clock_ticks_and_column_and_on_nothing_else():
    values = torch.full((64, 8), 0.3001)
    first = round_at_random(values, torch.bfloat16, keys_for(64))
    assert first.unique().shape[0] == 2
    assert not torch.equal(first[0], first[1])
    assert not torch.equal(first[:, 0], first[:, 1])
    for other in ({"clock": 2}, {"ticks": 0}, {"seed": 1}):
        drawn = round_at_random(values, torch.bfloat16, keys_for(64, **other))
        assert not torch.equal(first, drawn), other
    order = torch.randperm(64, generator=torch.Generator().manual_seed(0))
    alone = [round_at_random(values[i : i + 1], torch.bfloat16, keys_for(64)[i : i + 1])
             for i in order]  # fmt: skip
    assert torch.equal(first[order], torch.cat(alone))
