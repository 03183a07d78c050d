"""Checks of the Triton kernels of k-means on CPU tensors, run under Triton's interpreter."""

import numpy as np
import torch
from interpreted import mend_interpreter

from outsize.clustering import torch_engine, triton_engine
from outsize.clustering.nearest import nearest_in_column
from outsize.clustering.seeding import CHAIN_LENGTH, _run_chains
from outsize.clustering.sums import prepare_sums
from outsize.kernels.clusters import chains_triton, clusters_triton
from outsize.kernels.clusters.chains_triton import chains_by_triton
from outsize.kernels.clusters.clusters_triton import sums_by_triton


def check_nearest(columns, num_points, num_clusters, dim, largest):
    """Products of small whole numbers are exact, so the lowest of equal centroids is known."""
    points = torch.randn(columns, num_points, dim).mul(largest).round()
    centroids = torch.randn(columns, num_clusters, dim).mul(largest).round()
    squares = (points.double().unsqueeze(2) - centroids.double().unsqueeze(1)).square().sum(-1)
    lowest = (squares == squares.amin(2, keepdim=True)).int().argmax(2)
    found = triton_engine.prepare(centroids).search(points)
    assert torch.equal(found, lowest)


def check_far_from_the_origin():
    points, centroids = torch.randn(300, 3) + 1e4, torch.randn(9, 3) + 1e4
    found = nearest_in_column(points, centroids, triton_engine.prepare)
    expected = nearest_in_column(points, centroids, torch_engine.prepare)
    assert (found == expected).double().mean() > 0.99


def check_sums(columns, num_points, num_clusters, dim):
    points, weights = torch.randn(columns, num_points, dim), torch.rand(num_points).double()
    labels = torch.randint(num_clusters, (columns, num_points)) // 2 * 2  # some are empty
    expected = prepare_sums(points, weights, num_clusters)(labels)
    found = sums_by_triton(points, weights, labels, num_clusters)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs)


def check_chains(num_chains, dim):
    rows = torch.randn(num_chains * CHAIN_LENGTH, dim)
    squares, density = torch.rand(2, len(rows)).double()
    limits = torch.rand(num_chains, CHAIN_LENGTH).double()
    expected = _run_chains(rows, squares, density, limits)
    assert torch.equal(chains_by_triton(rows, squares, density, limits), expected)


if __name__ == "__main__":
    np.seterr(all="ignore")  # infinity is expected
    mend_interpreter()
    torch.manual_seed(0)
    clusters_triton._POINTS = dict.fromkeys(clusters_triton._POINTS, 32)
    clusters_triton._LEAST_POINTS = 32
    clusters_triton._MEMBERS = 16
    for largest in (0, 1, 40):  # 0: all points and centroids are equal
        check_nearest(2, 70, 9, 3, largest)
    check_nearest(1, 1, 1, 1, 40)
    check_nearest(3, 40, 12, 16, 2)
    check_far_from_the_origin()
    check_sums(1, 1, 1, 1)
    check_sums(3, 200, 7, 5)
    chains_triton.CANDIDATES = 128
    check_chains(1, 1)
    check_chains(4, 3)
    check_chains(5, 7)
    print("all checks passed")
