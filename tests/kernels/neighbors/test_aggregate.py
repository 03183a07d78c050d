"""Aggregates of neighbours and their gradients equal those of torch's own operations."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from outsize.kernels.neighbors.aggregate import aggregate

HOWS = ["mean", "sum", "max"]


def make(seed, degrees, num_nodes, dim):
    """Vectors, and edges of targets with these degrees."""
    draw = torch.Generator().manual_seed(seed)
    starts = torch.tensor([0, *degrees]).cumsum(0)
    sources = (torch.rand(int(starts[-1]), generator=draw) ** 3 * num_nodes).long()
    return torch.randn(num_nodes, dim, generator=draw), starts, sources


def both(vectors, starts, sources, how):
    """Ours and torch's, in float64, each with its gradient."""
    ours, exact = vectors.clone().requires_grad_(), vectors.double().requires_grad_()
    found = aggregate(ours, starts, sources, how)
    if len(sources):
        expected = F.embedding_bag(sources, exact, starts, mode=how, include_last_offset=True)
    else:
        expected = exact.new_zeros(len(starts) - 1, exact.shape[1]) + 0 * exact.sum()
    weights = torch.randn(found.shape, generator=torch.Generator().manual_seed(1))
    (found * weights).sum().backward()
    (expected * weights).sum().backward()
    return found, ours.grad, expected, exact.grad


@given(
    seed=st.integers(0, 1000),
    degrees=st.lists(st.sampled_from([0, 0, 1, 2, 5, 40]), max_size=8),
    num_nodes=st.sampled_from([1, 3, 100]),
    dim=st.sampled_from([1, 3, 16, 17, 64]),
    how=st.sampled_from(HOWS),
)
def test_aggregates_and_gradients_equal_torchs(seed, degrees, num_nodes, dim, how):
    found, gradient, expected, exact = both(*make(seed, degrees, num_nodes, dim), how)
    # float32 sums of up to 320 numbers
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(gradient.double(), exact, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_types_are_aggregated_too(how, dtype):
    vectors, starts, sources = make(0, [3, 0, 2], 5, 4)
    found = aggregate(vectors.to(dtype), starts, sources, how)
    assert found.dtype == dtype
    torch.testing.assert_close(
        found.float(), aggregate(vectors, starts, sources, how), atol=0.05, rtol=0.05
    )


def test_the_first_of_equal_maxima_gets_the_gradient_and_nan_is_kept():
    vectors = torch.tensor([[1.0, -5.0], [1.0, -4.0], [float("nan"), -6.0]], requires_grad=True)
    found = aggregate(vectors, torch.tensor([0, 2, 2, 4]), torch.tensor([1, 0, 0, 2]), "max")
    assert found[:2].tolist() == [[1.0, -4.0], [0.0, 0.0]]
    assert found[2, 0].isnan()
    found.sum().backward()
    assert vectors.grad.tolist() == [[0.0, 1.0], [1.0, 1.0], [1.0, 0.0]]
