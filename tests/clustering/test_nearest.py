import importlib.util
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outsize.clustering import CHUNK_POINTS, faiss_engine, nearest, numba_engine, torch_engine
from outsize.clustering.sums import prepare_sums
from outsize.errors import ConfigError, NonFiniteError
from outsize.kernels import compiled

needs_faiss = pytest.mark.skipif(
    importlib.util.find_spec("faiss") is None, reason="faiss is not installed"
)
needs_numba = pytest.mark.skipif(
    importlib.util.find_spec("numba") is None, reason="numba is not installed"
)
ENGINES = [
    "torch",
    pytest.param("faiss", marks=needs_faiss),
    pytest.param("numba", marks=needs_numba),
]
MOST = {"torch": 32, "faiss": 32, "numba": 16}  # dims


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def squares_to(points, centroids):
    return (points.double()[:, :, None] - centroids.double()[:, None]).square().sum(-1)


@pytest.mark.parametrize("engine", ENGINES)
@settings(deadline=None, max_examples=25)
@given(
    columns=st.integers(1, 3),
    num_points=st.integers(1, 300),
    num_clusters=st.integers(1, 200),
    dim=st.integers(1, 32),
    offset=st.sampled_from([0.0, 1e4]),
)
def test_the_nearest_centroid_is_found(engine, columns, num_points, num_clusters, dim, offset):
    dim = min(dim, MOST[engine])
    points = normal(columns, num_points, dim) + offset
    centroids = normal(columns, num_clusters, dim, seed=1) + offset
    squares = squares_to(points, centroids)
    labels = nearest(points, centroids, engine)
    found = squares.gather(2, labels.unsqueeze(2)).squeeze(2)
    torch.testing.assert_close(found, squares.amin(2), rtol=1e-5, atol=1e-5)
    assert (labels == squares.argmin(2)).double().mean() > 0.99


@pytest.mark.parametrize("engine", ENGINES)
@settings(deadline=None, max_examples=20)
@given(st.integers(0, 499), st.integers(1, 32), st.integers(2, 300))
def test_a_point_does_not_depend_on_its_neighbours(engine, index, dim, num_clusters):
    dim = min(dim, MOST[engine])
    # Points on a coarse grid, so that near ties, where rounding shows, are common.
    points = normal(1, 500, dim).mul(2).round()
    centroids = normal(1, num_clusters, dim, seed=1).mul(3).round() / 3
    alone = nearest(points[:, index : index + 1], centroids, engine)
    assert nearest(points, centroids, engine)[0, index] == alone


@pytest.mark.parametrize("engine", ENGINES)
def test_a_large_array_may_be_searched_in_pieces(engine):
    points = normal(2, 2 * CHUNK_POINTS + 77, 2).mul(8).round()
    centroids = normal(2, 30, 2, seed=1).mul(10).round() / 3
    pieces = [nearest(piece, centroids, engine) for piece in points.split(CHUNK_POINTS, dim=1)]
    assert torch.equal(nearest(points, centroids, engine), torch.cat(pieces, dim=1))


@pytest.mark.parametrize("dim", [1, 2, 3, 4, 16, 32])
@pytest.mark.parametrize("num_clusters", [1, 3, 2048, 60_000])
def test_every_chunk_divides_the_one_that_callers_may_cut_at(num_clusters, dim):
    centroids = torch.zeros(num_clusters, dim)
    assert CHUNK_POINTS % torch_engine.prepare(centroids).chunk_points == 0
    if faiss_engine.is_available():
        assert CHUNK_POINTS % faiss_engine.prepare(centroids).chunk_points == 0
    if numba_engine.is_available() and dim <= 16:
        assert CHUNK_POINTS % numba_engine.prepare(centroids).chunk_points == 0


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("dim", [2, 16])
def test_of_equal_centroids_the_lowest_is_found(dim, engine):
    centroids = normal(1, 100, dim)
    labels = nearest(normal(1, 2000, dim, seed=1), centroids.repeat(1, 3, 1), engine)
    assert labels.max() < 100
    assert torch.equal(labels, nearest(normal(1, 2000, dim, seed=1), centroids, engine))


@pytest.mark.parametrize("engine", ENGINES[1:])
def test_the_engines_agree(engine):
    points, centroids = normal(3, 5000, 8), normal(3, 300, 8, seed=1)
    same = nearest(points, centroids, "torch") == nearest(points, centroids, engine)
    assert same.double().mean() > 0.999


@needs_numba
@settings(max_examples=30)
@given(
    num_points=st.sampled_from([0, 1, 2, 127, 128, 129, 300]),
    num_clusters=st.integers(1, 30),
    dim=st.integers(1, 16),
    largest=st.sampled_from([0, 1, 40]),  # 0: all points and centroids are equal
    seed=st.integers(0, 99),
)
def test_compiled_search_is_exact_where_products_are(num_points, num_clusters, dim, largest, seed):
    points = normal(num_points, dim, seed=seed).mul(largest).round()
    centroids = normal(num_clusters, dim, seed=seed + 100).mul(largest).round()
    squares = squares_to(points[None], centroids[None])[0]
    lowest = (squares == squares.amin(1, keepdim=True)).int().argmax(1)  # of equals
    assert torch.equal(numba_engine.prepare(centroids).search(points), lowest)


@needs_numba
def test_threads_change_no_label():
    points, centroids = normal(1, 5000, 4), normal(1, 300, 4, seed=1)
    expected = nearest(points, centroids, "numba")
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        assert torch.equal(nearest(points, centroids, "numba"), expected)
    finally:
        torch.set_num_threads(before)


@needs_numba
@pytest.mark.parametrize(("num_points", "dim"), [(1, 1), (2, 3), (5000, 15)])
@pytest.mark.parametrize("num_clusters", [1, 7])
def test_compiled_sums_are_those_of_torch_to_the_bit(num_points, dim, num_clusters, monkeypatch):
    points, weights = normal(num_points, dim), normal(num_points, seed=1).double().abs()
    labels = torch.arange(num_points) * 7919 % num_clusters
    found = []
    for engine in ("torch", "numba"):
        monkeypatch.setenv("OUTSIZE_KERNELS", engine)
        compiled.numba_problem.cache_clear()
        compiled._modules.pop("clusters.clusters_numba", None)
        found.append(prepare_sums(points, weights, num_clusters)(labels))
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


@needs_faiss
def test_the_threads_of_faiss_are_left_as_they_were():
    import faiss

    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(3)
    try:
        nearest(normal(1, 100, 2), normal(1, 4, 2), "faiss")
        assert faiss.omp_get_max_threads() == 3
    finally:
        faiss.omp_set_num_threads(before)


@pytest.fixture(params=["highest", "medium"])
def precision(request):
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(request.param)
    yield request.param
    assert torch.get_float32_matmul_precision() == request.param
    torch.set_float32_matmul_precision(before)


def test_a_lowered_precision_of_products_does_not_reach_the_search(precision):
    points, centroids = normal(1, 2000, 8), normal(1, 300, 8, seed=1)
    labels = nearest(points, centroids, "torch")
    assert (labels == squares_to(points, centroids).argmin(2)).double().mean() > 0.999


@pytest.mark.gpu
def test_a_gpu_finds_the_same(precision):
    points, centroids = normal(2, 300_000, 4), normal(2, 500, 4, seed=1)
    found = nearest(points.cuda(), centroids.cuda())
    assert (found.cpu() == nearest(points, centroids, "torch")).double().mean() > 0.9999
    pieces = [
        nearest(piece, centroids.cuda()) for piece in points.cuda().split(CHUNK_POINTS, dim=1)
    ]
    assert torch.equal(found, torch.cat(pieces, dim=1))


def test_no_points_have_no_labels():
    assert nearest(torch.ones(2, 0, 3), torch.ones(2, 4, 3)).shape == (2, 0)


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize("shape", [(2, 4, 3), (1, 4, 2), (1, 0, 3)])
def test_centroids_of_another_shape_are_refused(shape):
    with pytest.raises(ConfigError, match="need centroids of the same columns and dim"):
        nearest(torch.ones(1, 5, 3), torch.ones(shape))


def test_centroids_that_are_nan_are_refused():
    with pytest.raises(NonFiniteError, match="centroids hold NaN"):
        nearest(torch.ones(1, 5, 1), torch.full((1, 2, 1), float("nan")))


def test_a_missing_engine_is_said_and_replaced(monkeypatch):
    for engine in (faiss_engine, numba_engine):
        monkeypatch.setattr(engine, "is_available", lambda: False)
    points, centroids = normal(1, 50, 2), normal(1, 5, 2, seed=1)
    assert torch.equal(nearest(points, centroids), nearest(points, centroids, "torch"))
    with pytest.raises(ConfigError, match=r"pip install 'outsize\[faiss\]'"):
        nearest(points, centroids, "faiss")
    with pytest.raises(ConfigError, match="numba cannot be used here"):
        nearest(points, centroids, "numba")


@needs_faiss
def test_faiss_is_kept_to_the_dims_of_its_fused_kernel():
    points, centroids = normal(1, 50, 33), normal(1, 5, 33, seed=1)
    assert torch.equal(nearest(points, centroids), nearest(points, centroids, "torch"))
    with pytest.raises(ConfigError, match="up to dim 32, but the points have 33"):
        nearest(points, centroids, "faiss")


@needs_numba
def test_numba_is_kept_to_the_dims_that_it_unrolls():
    points, centroids = normal(1, 50, 17), normal(1, 5, 17, seed=1)
    nearest(points, centroids)
    with pytest.raises(ConfigError, match="up to dim 16, but the points have 17"):
        nearest(points, centroids, "numba")


def test_engines_are_imported_when_they_are_first_used():
    code = "import sys, outsize.clustering; sys.exit(bool({'faiss', 'numba'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
