import pytest
import torch
from torch.nn.functional import pad

from outsize.clustering import numba_engine
from outsize.kernels.arrays import array
from outsize.kernels.threads import run_parts

pytest.importorskip("numba")


@pytest.fixture(scope="module")
def code():
    return numba_engine.kernels()


def nearest(code, points, centroids, parts):
    """The nearest centroids by the kernel, with rows that are only there to fill a tile."""
    num_missing = -len(centroids) % code.TILE
    width = min(size for size in code.DIMS if size >= points.shape[1])
    rows = pad(centroids, (0, width - points.shape[1], 0, num_missing)).flatten()
    half_norms = pad(centroids.square().sum(dim=1) / 2, (0, num_missing), value=torch.inf)
    labels = torch.full((len(points),), -1)
    given = (array(points), width, array(rows), array(half_norms), array(labels))
    run_parts(code.find_nearest, parts, *given)
    return labels


@pytest.mark.parametrize(
    ("num_points", "dim", "num_clusters"), [(1, 1, 1), (300, 5, 7), (129, 16, 8)]
)
def test_the_nearest_centroid_is_found_by_any_number_of_parts(code, num_points, dim, num_clusters):
    points, centroids = torch.randn(num_points, dim), torch.randn(num_clusters, dim)
    expected = torch.cdist(points.double(), centroids.double()).argmin(dim=1)
    for parts in (1, 2, 5):
        assert torch.equal(nearest(code, points, centroids, parts), expected)


def test_the_lowest_of_equal_centroids_is_taken(code):
    centroids = torch.tensor([[3.0], [1.0], [1.0], [2.0], [1.0], [1.0]])
    assert nearest(code, torch.ones(200, 1), centroids, 2).unique().tolist() == [1]


def test_sums_per_cluster_are_the_same_by_any_number_of_parts(code):
    points, weights = torch.randn(300, 3), torch.rand(300).double()
    labels = torch.randint(0, 7, (300,))
    found = []
    for parts in (1, 3, 7):
        masses = torch.zeros(7, dtype=torch.float64)
        sums = torch.zeros(7, 3, dtype=torch.float64)
        given = (array(part) for part in (points, weights, labels, masses, sums))
        run_parts(code.add_to_clusters, parts, *given)
        found.append((masses, sums))
    expected = torch.zeros(7, 3, dtype=torch.float64).index_add_(
        0, labels, points.double() * weights.unsqueeze(1)
    )
    torch.testing.assert_close(found[0][1], expected)
    torch.testing.assert_close(found[0][0], torch.bincount(labels, weights, minlength=7))
    for masses, sums in found[1:]:
        assert torch.equal(masses, found[0][0])
        assert torch.equal(sums, found[0][1])
