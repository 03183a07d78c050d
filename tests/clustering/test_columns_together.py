"""Several columns worked on at once, as on CUDA, beside each column alone."""

import importlib
import os
import subprocess
import sys
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outsize.clustering import CHUNK_POINTS, kmeans, nearest, torch_engine
from outsize.clustering.lloyd import lloyd
from outsize.clustering.nearest import nearest_in_column
from outsize.clustering.sums import add_by_count, add_by_index, prepare_sums


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def search(points, centroids):
    return nearest_in_column(points, centroids, torch_engine.prepare)


def run_lloyd(points, centroids, iterations, weights=None):
    weights = torch.ones(points.shape[-2]) if weights is None else weights
    generator = torch.Generator().manual_seed(0)
    return lloyd(
        points, weights.double(), centroids, iterations, generator, search, lambda made: None
    )


@pytest.fixture
def take_together(monkeypatch):
    """A function, after whose call all columns are taken at once on any device."""

    def take():
        for name in ("kmeans", "nearest"):
            module = importlib.import_module(f"outsize.clustering.{name}")
            monkeypatch.setattr(module, "column_batches", lambda columns: [columns])

    return take


@settings(deadline=None, max_examples=20)
@given(st.integers(1, 3), st.integers(1, 600), st.integers(1, 40), st.integers(1, 5))
def test_nearest_centroids_are_those_of_each_column(columns, num_points, num_clusters, dim):
    points = normal(columns, num_points, dim)
    centroids = normal(columns, num_clusters, dim, seed=1)
    alone = [search(*column) for column in zip(points, centroids, strict=True)]
    assert (search(points, centroids) == torch.stack(alone)).double().mean() > 0.99


def test_of_equal_centroids_the_lowest_of_each_column_is_found():
    points = normal(3, 500, 2)
    centroids = torch.stack([normal(20, 2, seed=seed).repeat(3, 1) for seed in range(3)])
    centroids[1] = centroids[1, 7]
    labels = search(points, centroids)
    assert labels[1].eq(0).all()
    assert labels.max() < 20
    assert torch.equal(labels[::2], search(points, centroids[:, :20])[::2])


def test_zeros_of_either_sign_are_equal_centroids():
    centroids = torch.tensor([[[-0.0, 1.0], [0.0, 1.0]], [[0.0, 1.0], [-0.0, 1.0]]])
    assert search(torch.ones(2, 5, 2), centroids).eq(0).all()


@pytest.mark.parametrize("num_clusters", [1, 3, 2048, 60_000])
@pytest.mark.parametrize("columns", [1, 3, 16])
def test_the_scores_of_all_columns_share_the_room_of_a_chunk(columns, num_clusters):
    rows = torch_engine.prepare(torch.zeros(columns, num_clusters, 2)).chunk_points
    assert CHUNK_POINTS % rows == 0
    assert rows == 1 or rows * columns * num_clusters <= 1 << 19


@pytest.mark.parametrize("layout", ["by column", "by point"])
def test_columns_together_may_be_searched_in_pieces(layout, take_together):
    take_together()
    points = normal(2, CHUNK_POINTS + 77, 2).mul(8).round()
    if layout == "by point":
        points = points.transpose(0, 1).contiguous().transpose(0, 1)
    centroids = normal(2, 30, 2, seed=1).mul(10).round() / 3
    pieces = [nearest(piece, centroids, "torch") for piece in points.split(CHUNK_POINTS, dim=1)]
    assert torch.equal(nearest(points, centroids, "torch"), torch.cat(pieces, dim=1))


@pytest.mark.parametrize("iterations", [1, 2, 6])
def test_iterations_are_those_of_each_column(iterations):
    points, weights = normal(3, 900, 3), torch.rand(900) + 0.1
    first = points[:, :12].clone()
    first[1, :4] = 1e3  # empty at first, so that this column draws
    together, _ = run_lloyd(points, first, iterations, weights)
    for column in range(3):
        alone, _ = run_lloyd(points[column], first[column], iterations, weights)
        torch.testing.assert_close(together[column], alone)


def test_a_column_that_is_done_stays_while_others_go_on():
    done = torch.tensor([0.0, 1.0, 9.0, 10.0]).repeat(100).unsqueeze(1)
    points = torch.stack([done, normal(400, 1), done + 3])
    first = torch.stack([torch.tensor([[0.5], [9.5]]), points[1, :2], torch.tensor([[3.0], [4.0]])])
    counts = [run_lloyd(points[column], first[column], 50)[1] for column in range(3)]
    assert counts[0] == 1
    assert 1 < counts[2] < counts[1] < 50
    for iterations in range(1, counts[1] + 3):
        together, made = run_lloyd(points, first, iterations)
        assert made == min(iterations, counts[1])
        assert torch.equal(together[0], first[0])
        for column in (1, 2):
            alone, _ = run_lloyd(points[column], first[column], iterations)
            torch.testing.assert_close(together[column], alone)


def test_sums_by_index_are_sums_by_count():
    rows, labels = normal(4, 300).double(), torch.randint(0, 7, (300,))
    expected = torch.stack([rows[:, labels == label].sum(1) for label in range(9)], dim=1)
    for add in (add_by_count, add_by_index):
        torch.testing.assert_close(add(rows, labels, 9), expected)


def test_sums_are_those_of_each_column():
    points, weights = normal(3, 200, 2), torch.rand(200, dtype=torch.float64)
    labels = torch.randint(0, 5, (3, 200))
    mass, moments = prepare_sums(points, weights, 6)(labels)
    assert moments.shape == (3, 6, 2)
    for column in range(3):
        alone = prepare_sums(points[column], weights, 6)(labels[column])
        assert torch.equal(mass[column], alone[0])
        assert torch.equal(moments[column], alone[1])


@pytest.mark.parametrize("init", ["afk-mc2", "k-means++", "random"])
def test_clusterings_together_are_those_alone(init, take_together):
    points = normal(3, 2000, 4)
    points[1] = points[1].round()  # few distinct points, so that clusters are empty
    weights = torch.rand(2000, generator=torch.Generator().manual_seed(1))
    options = {"weights": weights, "init": init, "engine": "torch", "max_points_per_cluster": 50}
    alone = kmeans(points, 30, iterations=8, **options)
    take_together()
    together = kmeans(points, 30, iterations=8, **options)
    torch.testing.assert_close(together.centroids, alone.centroids)
    torch.testing.assert_close(together.mse, alone.mse)
    assert torch.equal(together.num_empty, alone.num_empty)
    assert together.iterations == alone.iterations


TWICE = """
import torch
from outsize.clustering import kmeans, nearest

torch.use_deterministic_algorithms(True)
points = torch.randn(3, 20_000, 4, generator=torch.Generator().manual_seed(0)).cuda()
points[1] = points[1].round()  # few distinct points, so that clusters are empty
weights = (torch.arange(20_000) % 7).float()
for init in ("afk-mc2", "k-means++", "random"):
    for most in (50, 256):
        options = {"init": init, "iterations": 8, "max_points_per_cluster": most}
        once, again = (kmeans(points, 100, weights=weights, **options) for _ in range(2))
        assert torch.equal(once.centroids, again.centroids), init
        assert torch.equal(once.mse, again.mse), init
        labels = nearest(points, once.centroids)
        assert torch.equal(labels, nearest(points, once.centroids)), init
"""


@pytest.mark.gpu
def test_a_gpu_gives_the_same_twice_where_torch_is_told_to():
    # torch looks at the setting once a process, at its first product.
    setting = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    subprocess.run([sys.executable, "-c", TWICE], env=os.environ | setting, check=True)


@pytest.mark.gpu
def test_columns_together_are_columns_alone_on_a_gpu():
    points = normal(3, 20_000, 4).cuda()
    together = kmeans(points, 100, iterations=3)
    labels = nearest(points, together.centroids)
    for column in range(3):
        alone = kmeans(points[column : column + 1], 100, iterations=3)
        assert alone.mse[0].item() == pytest.approx(together.mse[column].item(), rel=0.01)
        same = nearest(points[column : column + 1], together.centroids[column : column + 1])
        assert (same[0] == labels[column]).double().mean() > 0.999


@pytest.mark.gpu
def test_a_gpu_is_waited_for_once_an_iteration():
    points = normal(3, 20_000, 4).cuda()
    first = points[:, :50].clone()
    weights = torch.ones(20_000, dtype=torch.float64).cuda()
    generator = torch.Generator().manual_seed(0)

    def num_waits(iterations):
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                lloyd(points, weights, first, iterations, generator, search, lambda _: None)
            finally:
                torch.cuda.set_sync_debug_mode("default")
        return sum("synchronizing CUDA operation" in str(one.message) for one in warned)

    assert num_waits(7) - num_waits(3) == 4
