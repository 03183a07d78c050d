import math

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import stats

from outsize.data.zipf import Zipf
from outsize.errors import ConfigError

SKEWS = [0.0, 0.5, 1.0, 1.05, 1.2, 2.5]
SIZES = [1, 5, 2047, 2048, 2049, 10**6]


def exact_weights(size, skew):
    return np.arange(1, size + 1, dtype=np.float64) ** -skew


def uniform_draws(count, seed, columns=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(count, columns, dtype=torch.float64, generator=generator)


@pytest.mark.parametrize("skew", SKEWS)
@pytest.mark.parametrize("size", SIZES)
def test_ranks_invert_the_exact_distribution(size, skew):
    share = exact_weights(size, skew)
    cumulative = np.cumsum(share) / share.sum()
    uniform = uniform_draws(20_000, seed=1)
    expected = np.searchsorted(cumulative, uniform[:, 0].numpy())
    distance = np.abs(Zipf([size], skew).ranks(uniform)[:, 0].numpy() - expected)
    # A draw next to the border of two ranks may go to either.
    assert distance.max() <= 1
    assert (distance > 0).mean() < 1e-3


@pytest.mark.parametrize("skew", [0.0, 1.0, 1.05, 1.2])
def test_head_and_tail_of_a_large_table_are_drawn_as_often_as_they_should(skew):
    size, count = 10**7, 200_000
    borders = np.array([*range(13), 20, 50, 200, 1000, 2048, 2049, 5000, 10**5, 10**6, size])
    mass = np.add.reduceat(exact_weights(size, skew), borders[:-1])
    expected = count * mass / mass.sum()
    ranks = Zipf([size], skew).ranks(uniform_draws(count, seed=2))[:, 0].numpy()
    counted = np.histogram(ranks, bins=borders)[0]
    assert counted.sum() == count
    # Cells that hardly anything falls into are joined: the statistic needs a handful in each.
    rare = expected < 10
    if rare.any():
        expected = np.append(expected[~rare], expected[rare].sum())
        counted = np.append(counted[~rare], counted[rare].sum())
    assert stats.chisquare(counted, expected).pvalue > 1e-5


@pytest.mark.parametrize("skew", [0.0, 1.0, 1.2])
@pytest.mark.parametrize("size", [5, 2048, 2049])
def test_every_rank_of_a_small_table_is_drawn_as_often_as_it_should(size, skew):
    zipf, count = Zipf([size], skew), 300_000
    drawn = zipf.ranks(uniform_draws(count, seed=3))[:, 0]
    expected = count * zipf.probability(torch.arange(size)).numpy()
    counted = torch.bincount(drawn, minlength=size).numpy()
    assert stats.chisquare(counted, expected * count / expected.sum()).pvalue > 1e-5


@settings(deadline=None)
@given(st.integers(1, 10**9), st.floats(0, 8), st.floats(0, 1, exclude_max=True))
@example(10**5, 1.05, 1 - 2.0**-53)
@example(10**7, 1.0, 1 - 2.0**-53)
@example(10**7, 1.2, 1 - 2.0**-53)
@example(2049, 0.0, 1 - 2.0**-53)
@example(2048, 1.0, 1 - 2.0**-53)
@example(1, 1.0, 1 - 2.0**-53)
@example(10**7, 1.0, 2.0**-53)
@example(10**7, 1.2, 0.0)
def test_ranks_never_leave_their_table(size, skew, uniform):
    rank = Zipf([size], skew).ranks(torch.tensor([[uniform]], dtype=torch.float64)).item()
    assert 0 <= rank < size


@pytest.mark.parametrize("skew", [0.0, 1.0, 1.2])
@pytest.mark.parametrize("size", [1, 5, 2048, 2049, 10**7])
def test_the_smallest_and_largest_draws_give_the_first_and_last_rank(size, skew):
    zipf = Zipf([size], skew)
    ends = torch.tensor([[2.0**-53], [1 - 2.0**-53]], dtype=torch.float64)
    assert zipf.ranks(ends)[:, 0].tolist() == [0, size - 1]
    assert 0 <= zipf.ranks(torch.tensor([[1 - 2.0**-24]])).item() < size


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 10**8), st.floats(0, 3))
def test_larger_draws_give_later_ranks(size, skew):
    uniform = uniform_draws(500, seed=4).sort(dim=0).values
    assert (Zipf([size], skew).ranks(uniform).diff(dim=0) >= 0).all()


@pytest.mark.parametrize("skew", SKEWS)
@pytest.mark.parametrize("size", SIZES)
def test_probabilities_sum_to_one_and_fall_as_a_power_of_the_rank(size, skew):
    probability = Zipf([size], skew).probability(torch.arange(size))
    assert probability.dtype == torch.float64
    assert probability.sum().item() == pytest.approx(1, abs=1e-8)
    ratio = (probability / probability[0]).numpy()
    np.testing.assert_allclose(ratio, exact_weights(size, skew), rtol=1e-12)


def test_columns_are_independent_tables():
    sizes = [3, 10**6, 2048]
    uniform = uniform_draws(1000, seed=5, columns=3)
    together = Zipf(sizes, 1.05)
    ranks = together.ranks(uniform)
    for column, size in enumerate(sizes):
        alone = Zipf([size], 1.05)
        assert torch.equal(ranks[:, [column]], alone.ranks(uniform[:, [column]]))
        first = torch.arange(3)
        assert torch.equal(together.probability(first, column), alone.probability(first))


@pytest.mark.parametrize("skew", [math.nextafter(1, 2), math.nextafter(1, 0), 1 + 1e-12, 1 + 1e-9])
def test_a_skew_beside_1_is_drawn_like_1(skew):
    # 0.7 + 0.1 + 0.1 + 0.1 is such a number.
    uniform = uniform_draws(2000, seed=6)
    ranks, expected = (Zipf([10**7], s).ranks(uniform).double() for s in (skew, 1.0))
    assert ((ranks - expected).abs() <= 1 + 1e-6 * expected).all()
    assert Zipf([10**7], skew).probability(torch.tensor([0])).item() == pytest.approx(
        Zipf([10**7], 1.0).probability(torch.tensor([0])).item(), rel=1e-7
    )


@pytest.mark.parametrize("skew", [-0.1, math.nan, math.inf])
def test_an_impossible_skew_is_refused(skew):
    with pytest.raises(ConfigError, match=f"skew must be a finite number >= 0, but got {skew}"):
        Zipf([10], skew)


@pytest.mark.parametrize("sizes", [[], [0], [5, -1]])
def test_a_column_without_ranks_is_refused(sizes):
    with pytest.raises(ConfigError, match="at least one rank in every column"):
        Zipf(sizes, 1.0)
