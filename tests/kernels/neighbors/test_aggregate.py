"""Aggregates of neighbours and their gradients equal those of torch's own operations."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from outsize.errors import DataError
from outsize.kernels.neighbors import aggregate as module
from outsize.kernels.neighbors.aggregate import aggregate, aggregate_by_torch

HOWS = ["mean", "sum", "max"]


@pytest.fixture(params=["numba", "torch"])
def kernels(request, monkeypatch):
    monkeypatch.setenv("OUTSIZE_KERNELS", request.param)


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


@pytest.mark.parametrize("choice", ["numba", "torch"])
@settings(max_examples=40)
@given(
    seed=st.integers(0, 1000),
    degrees=st.lists(st.sampled_from([0, 0, 1, 2, 5, 40]), max_size=8),
    num_nodes=st.sampled_from([1, 3, 100]),
    dim=st.sampled_from([1, 3, 16, 17, 64]),
    how=st.sampled_from(HOWS),
)
def test_aggregates_and_gradients_equal_torchs(choice, seed, degrees, num_nodes, dim, how):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OUTSIZE_KERNELS", choice)
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


def test_the_first_of_equal_maxima_gets_the_gradient_and_nan_is_kept(kernels):
    vectors = torch.tensor([[1.0, -5.0], [1.0, -4.0], [float("nan"), -6.0]], requires_grad=True)
    found = aggregate(vectors, torch.tensor([0, 2, 2, 4]), torch.tensor([1, 0, 0, 2]), "max")
    assert found[:2].tolist() == [[1.0, -4.0], [0.0, 0.0]]
    assert found[2, 0].isnan()
    found.sum().backward()
    assert vectors.grad.tolist() == [[0.0, 1.0], [1.0, 1.0], [1.0, 0.0]]


@pytest.mark.parametrize("how", HOWS)
def test_results_do_not_depend_on_the_number_of_threads(monkeypatch, how):
    monkeypatch.setattr(module, "_LEAST_NUMBERS", 1)
    vectors, starts, sources = make(0, [0, 3000, 1, 0, 0, *range(60)], 200, 40)
    found = []
    for parts in (1, 2, 3, 8):
        monkeypatch.setattr(module, "num_parts", lambda *_, parts=parts: parts)
        leaf = vectors.clone().requires_grad_()
        out = aggregate(leaf, starts, sources, how)
        out.backward(torch.arange(out.numel()).view_as(out) / 7)
        found.append((out.detach(), leaf.grad))
    for other in found[1:]:
        assert torch.equal(found[0][0], other[0])
        assert torch.equal(found[0][1], other[1])


def test_gradients_of_gradients_of_means(monkeypatch):
    monkeypatch.setenv("OUTSIZE_KERNELS", "numba")
    vectors, starts, sources = make(0, [3, 0, 9], 6, 4)
    weights = torch.zeros(3, 6)
    for target in range(3):
        for source in sources[starts[target] : starts[target + 1]]:
            weights[target, source] += 1 / float(starts[target + 1] - starts[target])
    vectors = vectors.requires_grad_()
    cube = aggregate(vectors, starts, sources).pow(3).sum()
    exact = (weights @ vectors).pow(3).sum()
    found = []
    for total in (cube, exact):
        (first,) = torch.autograd.grad(total, vectors, create_graph=True)
        found.append(torch.autograd.grad(first.pow(2).sum(), vectors)[0])
    torch.testing.assert_close(*found)


def test_vectors_need_not_be_contiguous(monkeypatch):
    monkeypatch.setenv("OUTSIZE_KERNELS", "numba")
    vectors, starts, sources = make(0, [3, 0, 9], 6, 4)
    leaf = vectors.t().contiguous().requires_grad_()
    found = aggregate(leaf.t(), starts, sources)
    torch.testing.assert_close(found, aggregate_by_torch(vectors, starts, sources))
    found.t().pow(2).sum().backward()
    again = vectors.clone().requires_grad_()
    aggregate_by_torch(again, starts, sources).pow(2).sum().backward()
    torch.testing.assert_close(leaf.grad.t(), again.grad)


@pytest.mark.parametrize(
    ("starts", "sources", "said"),
    [
        ([0, 2], [0, 3], "sources are 0 … 3, but there are vectors of 3 nodes"),
        ([0, 2], [-1, 2], "sources are -1 … 2"),
        ([0, 2, 1, 3], [0, 1, 2], "starts must not decrease, from 0 to the number of edges, 3"),
        ([1, 3], [0, 1, 2], "starts must not decrease, from 0"),
        ([0, 4], [0, 1, 2], "starts must not decrease, from 0"),
    ],
)
def test_edges_that_are_out_of_range_are_refused(monkeypatch, starts, sources, said):
    monkeypatch.setenv("OUTSIZE_KERNELS", "numba")
    with pytest.raises(DataError, match=said):
        aggregate(torch.zeros(3, 2), torch.tensor(starts), torch.tensor(sources))


@pytest.mark.parametrize("how", HOWS)
def test_torch_may_be_asked_to_be_deterministic(how):
    vectors, starts, sources = make(0, [3, 0, 90, 2], 50, 16)
    leaf = vectors.requires_grad_()
    torch.use_deterministic_algorithms(True)
    try:
        aggregate_by_torch(leaf, starts, sources, how).sum().backward()
    finally:
        torch.use_deterministic_algorithms(False)
    assert leaf.grad.abs().sum() > 0


@pytest.mark.gpu
@pytest.mark.parametrize("how", HOWS)
def test_cuda_gives_the_same(how):
    vectors, starts, sources = make(0, [3, 0, 90, 2], 50, 16)
    found = []
    for device in ("cpu", "cuda", "cuda"):
        leaf = vectors.detach().to(device).requires_grad_()
        aggregate(leaf, starts.to(device), sources.to(device), how).pow(2).sum().backward()
        found.append(leaf.grad.cpu())
    torch.testing.assert_close(found[0], found[1])
    assert torch.equal(found[1], found[2])
