from pathlib import Path

import pytest
import torch
from interpreted import needs_triton, run_interpreted

from outsize.clustering import kmeans, nearest
from outsize.clustering.seeding import CHAIN_LENGTH, _run_chains
from outsize.clustering.sums import prepare_sums


@needs_triton
def test_the_kernels_mean_the_same_under_the_interpreter():
    run_interpreted(Path(__file__).with_name("check_clusters_triton.py"))


@pytest.mark.gpu
@pytest.mark.parametrize("dim", [1, 4, 7, 16, 32])
@pytest.mark.parametrize(("num_points", "num_clusters"), [(1, 1), (3000, 7), (200_000, 1001)])
def test_a_gpu_finds_the_lowest_of_the_nearest_where_products_are_exact(
    dim, num_points, num_clusters
):
    points = torch.randn(2, num_points, dim).mul(3).round()
    centroids = torch.randn(2, num_clusters, dim).mul(3).round()
    centroids -= centroids.mean(1, keepdim=True).round()
    found = nearest(points.cuda(), centroids.cuda(), "triton").cpu()
    chosen = torch.stack([some[labels] for some, labels in zip(centroids, found, strict=True)])
    squares = (points - chosen).square().sum(-1)
    for column in range(2):
        for some in torch.arange(num_points).split(20_000):
            scores = torch.cdist(points[column, some].double(), centroids[column].double())
            least = scores.min(1).values.square()
            torch.testing.assert_close(squares[column, some].double(), least)


@pytest.mark.gpu
@pytest.mark.parametrize("columns", [(), (1,), (3,)])
def test_sums_on_a_gpu_are_those_of_the_cpu_and_the_same_twice(columns):
    points = torch.randn(*columns, 50_000, 5)
    weights, labels = torch.rand(50_000).double(), torch.randint(40, (*columns, 50_000)) // 2 * 2
    expected = prepare_sums(points, weights, 41)(labels)
    sums = prepare_sums(points.cuda(), weights.cuda(), 41)
    found, again = sums(labels.cuda()), sums(labels.cuda())
    for ours, same, theirs in zip(found, again, expected, strict=True):
        torch.testing.assert_close(ours.cpu(), theirs)
        assert torch.equal(ours, same)


@pytest.mark.gpu
@pytest.mark.parametrize("dim", [1, 4, 7])
@pytest.mark.parametrize("num_chains", [1, 64])
def test_chains_on_a_gpu_end_where_they_do_on_the_cpu(dim, num_chains):
    rows = torch.randn(num_chains * CHAIN_LENGTH, dim)
    squares, density = torch.rand(2, len(rows)).double()
    limits = torch.rand(num_chains, CHAIN_LENGTH).double()
    found = _run_chains(rows.cuda(), squares.cuda(), density.cuda(), limits)
    assert torch.equal(found.cpu(), _run_chains(rows, squares, density, limits))


@pytest.mark.gpu
def test_clusters_of_a_gpu_are_as_tight_as_those_of_the_cpu():
    points = torch.randn(2, 40_000, 4)
    ours = kmeans(points.cuda(), 300, iterations=10)
    torch.testing.assert_close(
        ours.mse.cpu(), kmeans(points, 300, iterations=10).mse, rtol=0.02, atol=0
    )
