import importlib.util
import math

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from outsize.clustering import Clustering, kmeans, nearest
from outsize.clustering.lloyd import lloyd
from outsize.clustering.nearest import choose_engine, nearest_in_column
from outsize.clustering.sampling import draw_distinct
from outsize.errors import ConfigError, DataError, NonFiniteError

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
INITS = ["afk-mc2", "k-means++", "random"]

coordinates = st.integers(-3, 3).map(float) | st.floats(-100, 100, width=32)
small_points = st.integers(1, 3).flatmap(
    lambda dim: st.lists(st.lists(coordinates, min_size=dim, max_size=dim), min_size=1, max_size=30)
)


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def blobs(num_blobs, points_per_blob, dim=3, columns=1, spread=0.01, seed=0):
    """Blobs on the corners of a grid, one unit apart, and their centres."""
    side = math.ceil(num_blobs ** (1 / dim))
    axes = [torch.arange(float(side))] * dim
    centres = torch.cartesian_prod(*axes).view(-1, dim)[:num_blobs]
    noise = spread * normal(columns, num_blobs, points_per_blob, dim, seed=seed)
    return (centres[:, None] + noise).flatten(1, 2), centres


def all_squares(points, centroids):
    return (points.double()[:, None] - centroids.double()[None]).square().sum(-1)


def brute_mse(points, centroids, weights=None):
    """The weighted mean squared distance to the nearest centroid, from all distances."""
    weights = torch.ones(len(points)) if weights is None else weights
    squares = all_squares(points, centroids).amin(1)
    return ((weights * squares).sum() / weights.sum()).item()


def plain_lloyd(points, centroids, iterations):
    """Lloyd's iteration by the book, in float64."""
    for _ in range(iterations):
        labels = all_squares(points, centroids).argmin(1)
        centroids = torch.stack(
            [points[labels == j].double().mean(0) for j in range(len(centroids))]
        )
    return centroids


def run_lloyd(points, centroids, iterations, weights=None, engine="torch"):
    prepare = choose_engine(engine, points[None])
    weights = torch.ones(len(points)) if weights is None else weights
    return lloyd(
        points,
        weights.double(),
        centroids,
        iterations,
        torch.Generator().manual_seed(0),
        lambda some, others: nearest_in_column(some, others, prepare),
        lambda done: None,
    )[0]


# Oracles


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("init", ["afk-mc2", "k-means++"])
def test_separate_blobs_are_found_exactly(init, engine):
    points, centres = blobs(20, 30, columns=2)
    found = kmeans(points, 20, init=init, engine=engine)
    for column in range(2):
        labels = nearest(centres[None], found.centroids[column : column + 1]).squeeze(0)
        assert labels.unique().numel() == 20
        expected = points[column].view(20, 30, 3).mean(1)
        torch.testing.assert_close(found.centroids[column][labels], expected)
    assert found.num_empty.tolist() == [0, 0]
    assert 1 <= found.iterations < 50


@pytest.mark.parametrize("engine", ENGINES)
def test_two_clusters_on_a_line_have_the_known_optimum(engine):
    points = torch.tensor([0.0, 1.0, 2.0, 10.0, 11.0, 12.0]).view(1, -1, 1)
    found = kmeans(points, 2, engine=engine)
    assert sorted(found.centroids.flatten().tolist()) == [1.0, 11.0]
    assert found.mse.item() == pytest.approx(4 / 6)


def test_one_cluster_is_the_weighted_mean():
    points, weights = normal(2, 50, 3), torch.arange(50.0)
    found = kmeans(points, 1, weights=weights)
    expected = (points * weights[:, None]).sum(1, keepdim=True) / weights.sum()
    torch.testing.assert_close(found.centroids, expected)
    errors = [brute_mse(points[i], found.centroids[i], weights) for i in range(2)]
    assert found.mse.tolist() == pytest.approx(errors)


@pytest.mark.parametrize("engine", ENGINES)
def test_iterations_are_those_of_the_book(engine):
    points = normal(400, 4)
    first = points[:8].clone()
    for iterations in (1, 2, 5):
        torch.testing.assert_close(
            run_lloyd(points, first, iterations, engine=engine),
            plain_lloyd(points, first, iterations).float(),
        )


@pytest.mark.parametrize("engine", ENGINES)
def test_a_cluster_without_points_is_moved_to_where_the_error_is(engine):
    points = torch.tensor([[0.0], [0.1], [50.0], [50.1]])
    found = run_lloyd(points, torch.tensor([[0.0], [1e6]]), 20, engine=engine)
    torch.testing.assert_close(found.sort(0).values, torch.tensor([[0.05], [50.05]]))


# Properties


@pytest.mark.parametrize("init", INITS)
@settings(deadline=None, max_examples=40)
@given(points=small_points, num_clusters=st.integers(1, 8), seed=st.integers(0, 9))
@example(points=[[1.0]], num_clusters=3, seed=0)
@example(points=[[0.0], [0.0], [1.0]], num_clusters=2, seed=0)
def test_the_error_reported_is_that_of_the_centroids(init, points, num_clusters, seed):
    points = torch.tensor(points)
    found = kmeans(points[None], num_clusters, init=init, seed=seed, engine="torch")
    assert found.centroids.shape == (1, num_clusters, points.shape[1])
    assert found.centroids.isfinite().all()
    scale = 1 + points.abs().max().item() ** 2
    expected = brute_mse(points, found.centroids[0])
    assert found.mse.item() == pytest.approx(expected, abs=1e-6 * scale)
    used = nearest(points[None], found.centroids, engine="torch").unique().numel()
    assert found.num_empty.item() == num_clusters - used


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(0, 3), min_size=40, max_size=40).filter(lambda w: sum(w) > 0))
def test_a_weight_means_so_many_copies(weights):
    points, first = normal(40, 2), normal(3, 2, seed=1)
    weights = torch.tensor(weights)
    weighted = run_lloyd(points, first, 10, weights.float())
    copied = run_lloyd(points.repeat_interleave(weights, 0), first, 10)
    torch.testing.assert_close(weighted, copied)


@pytest.mark.parametrize("init", INITS)
def test_points_of_weight_0_have_no_influence(init):
    points, weights = normal(2, 300, 3), torch.rand(300)
    weights[100:] = 0
    spoiled = points.clone()
    spoiled[:, 100:] = 1e6
    for some in (points[:, :100], spoiled):
        found = kmeans(some, 10, weights=weights[: some.shape[1]], init=init)
        torch.testing.assert_close(
            found.centroids, kmeans(points, 10, weights=weights, init=init).centroids
        )
        assert found.centroids.abs().max() < 10


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("offset", [1e4, -1e4])
def test_points_far_from_the_origin_are_clustered_as_well_as_near_it(offset, engine):
    points = normal(1, 3000, 4).mul(64).round() / 64  # so that adding the offset is exact
    near = kmeans(points, 50, iterations=10, engine=engine)
    far = kmeans(points + offset, 50, iterations=10, engine=engine)
    assert far.mse.item() == pytest.approx(near.mse.item(), rel=0.02)
    torch.testing.assert_close(
        brute_mse(points[0] + offset, far.centroids[0]), far.mse.item(), rtol=1e-3, atol=0
    )


def test_a_sample_drawn_by_priority_estimates_sums_without_bias():
    weights = torch.tensor([100.0, 10.0, *[1.0] * 30], dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    sums = torch.zeros(32, dtype=torch.float64)
    for _ in range(2000):
        drawn, given_weights = draw_distinct(weights, 8, generator)
        assert drawn.unique().numel() == 8
        sums[drawn] += given_weights
    mean = sums / 2000
    assert mean[0].item() == pytest.approx(100)  # a heavy point is always drawn
    torch.testing.assert_close(mean, weights, rtol=0.2, atol=0)


def test_all_indices_but_one_are_drawn_without_bias():
    weights, sums = torch.tensor([1.0, 2.0, 3.0]), torch.zeros(3, dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    for _ in range(4000):
        drawn, given_weights = draw_distinct(weights, 2, generator)
        sums[drawn] += given_weights
    torch.testing.assert_close(sums / 4000, weights.double(), rtol=0.1, atol=0)


def test_a_sample_of_chunks_is_that_of_all_weights_at_once(monkeypatch):
    weights = normal(5000).abs() * (torch.arange(5000) % 3 > 0)
    draws = []
    for size in (1 << 20, 700, 64):
        monkeypatch.setattr("outsize.clustering.sampling._CHUNK", size)
        draws.append(draw_distinct(weights, 90, torch.Generator().manual_seed(0)))
    for drawn, given_weights in draws:
        assert torch.equal(drawn, draws[0][0])
        assert torch.equal(given_weights, draws[0][1])


def test_of_many_points_a_sample_is_fitted():
    points = normal(1, 20_000, 2)
    sampled = kmeans(points, 20, max_points_per_cluster=100)
    complete = kmeans(points, 20, max_points_per_cluster=1000)
    assert brute_mse(points[0], complete.centroids[0]) == pytest.approx(complete.mse.item())
    assert sampled.mse.item() != pytest.approx(brute_mse(points[0], sampled.centroids[0]), rel=1e-6)
    assert brute_mse(points[0], sampled.centroids[0]) < 1.1 * complete.mse.item()


def test_heavy_points_are_in_the_sample():
    points, weights = normal(1, 5000, 2), torch.ones(5000)
    points[0, 17], weights[17] = 40.0, 1e6
    found = kmeans(points, 4, weights=weights, max_points_per_cluster=25)
    assert (found.centroids[0] - 40.0).abs().sum(-1).min() < 0.1


# Equivalences


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("init", INITS)
def test_columns_together_are_columns_alone(init, engine):
    points = torch.cat([normal(2, 2000, 4), blobs(20, 100, dim=4)[0]])
    weights = torch.rand(2000, generator=torch.Generator().manual_seed(1))
    options = {"weights": weights, "init": init, "iterations": 8, "engine": engine, "seed": 3}
    together = kmeans(points, 30, max_points_per_cluster=50, **options)
    for column in range(3):
        alone = kmeans(points[column : column + 1], 30, max_points_per_cluster=50, **options)
        assert torch.equal(together.centroids[column], alone.centroids[0])
        assert together.mse[column] == alone.mse[0]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("init", INITS)
def test_a_seed_determines_the_result(init, engine):
    points = normal(2, 3000, 3)

    def centroids(seed):
        found = kmeans(
            points, 20, init=init, seed=seed, engine=engine, iterations=5, max_points_per_cluster=99
        )
        return found.centroids

    state = torch.random.get_rng_state()
    assert torch.equal(centroids(1), centroids(1))
    assert not torch.equal(centroids(1), centroids(2))
    assert torch.equal(state, torch.random.get_rng_state())


@needs_faiss
@pytest.mark.parametrize("dim", [2, 8])
@pytest.mark.parametrize("kind", ["normal", "blobs", "long tail"])
def test_results_are_as_good_as_those_of_faiss_itself(kind, dim):
    import faiss

    points = {
        "normal": lambda: normal(8000, dim),
        "blobs": lambda: blobs(150, 60, dim=dim, spread=0.2)[0][0],
        "long tail": lambda: normal(8000, dim) ** 3,
    }[kind]()
    peer = faiss.Kmeans(dim, 100, niter=20, seed=1, min_points_per_centroid=1)
    peer.train(points.numpy())
    expected = brute_mse(points, torch.from_numpy(peer.centroids))
    for engine in ("torch", "faiss", "auto"):
        found = kmeans(points[None], 100, iterations=20, engine=engine)
        assert found.mse.item() < 1.03 * expected


@pytest.mark.parametrize("init", ["afk-mc2", "k-means++"])
def test_seeding_by_distance_beats_random_points_on_uneven_data(init):
    points = normal(1, 6000, 4) ** 3
    options = {"iterations": 0, "seed": 2}
    by_distance = kmeans(points, 100, init=init, **options).mse.item()
    assert by_distance < 0.8 * kmeans(points, 100, init="random", **options).mse.item()


def test_chains_come_near_exact_draws():
    points = normal(1, 4000, 4) ** 3

    def mean_error(init):
        found = [kmeans(points, 64, init=init, iterations=0, seed=seed) for seed in range(8)]
        return sum(one.mse.item() for one in found) / 8

    assert mean_error("afk-mc2") == pytest.approx(mean_error("k-means++"), rel=0.15)


@pytest.mark.gpu
def test_a_gpu_finds_centroids_as_good():
    points = normal(2, 20_000, 4)
    cpu, gpu = kmeans(points, 100), kmeans(points.cuda(), 100)
    assert gpu.centroids.is_cuda
    assert gpu.mse.tolist() == pytest.approx(cpu.mse.tolist(), rel=0.02)
    expected = brute_mse(points[0], gpu.centroids[0].cpu())
    assert gpu.mse[0].item() == pytest.approx(expected, rel=1e-4)


# Few distinct points


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("init", INITS)
@pytest.mark.parametrize("copies", [1, 40])
@pytest.mark.parametrize("num_clusters", [7, 9, 20])
def test_each_of_few_distinct_points_is_a_centroid(num_clusters, copies, init, engine):
    distinct = normal(2, 7, 3)
    points = distinct.repeat(1, copies, 1)
    found = kmeans(points, num_clusters, init=init, engine=engine)
    assert found.mse.tolist() == [0, 0]
    assert found.num_empty.tolist() == [num_clusters - 7] * 2
    for column in range(2):
        assert torch.equal(found.centroids[column].unique(dim=0), distinct[column].unique(dim=0))


@pytest.mark.parametrize("engine", ENGINES)
def test_equal_points_are_one_cluster(engine):
    found = kmeans(torch.full((1, 1000, 4), 0.1), 5, engine=engine)
    assert torch.equal(found.centroids, torch.full((1, 5, 4), 0.1))
    assert found.num_empty.item() == 4
    assert found.mse.item() == 0


@pytest.mark.parametrize("init", INITS)
def test_a_crowd_of_copies_does_not_take_the_other_points_centroids(init):
    points = torch.cat([torch.zeros(5000, 2), normal(40, 2)])[None]
    found = kmeans(points, 30, init=init)
    assert found.num_empty.item() == 0
    assert found.mse.item() < 0.001


# Refusals


NAN, INFINITY = float("nan"), float("inf")
BAD = {
    "no clusters": ({"num_clusters": 0}, ConfigError, "num_clusters must be >= 1, but got 0"),
    "no iterations": ({"iterations": -1}, ConfigError, "iterations must be >= 0, but got -1"),
    "an unknown init": ({"init": "best"}, ConfigError, "init must be one of .*'best'"),
    "an unknown engine": ({"engine": "gpu"}, ConfigError, "engine must be .*'gpu'"),
    "no sample": ({"max_points_per_cluster": 0}, ConfigError, "max_points_per_cluster"),
    "no points": ({"points": torch.ones(1, 0, 2)}, DataError, "no points to cluster"),
    "no columns": ({"points": torch.ones(0, 3, 2)}, DataError, "no points to cluster"),
    "two axes": ({"points": torch.ones(3, 2)}, ConfigError, "of shape .columns, n, dim."),
    "integers": ({"points": torch.ones(1, 3, 2).long()}, ConfigError, "must be floats"),
    "NaN": ({"points": torch.tensor([[[1.0], [NAN], [2.0]]])}, NonFiniteError, "points hold NaN"),
    "infinity": ({"points": torch.tensor([[[-INFINITY]] * 3])}, NonFiniteError, "points hold NaN"),
    "huge points": ({"points": torch.full((1, 3, 1), -1e20)}, DataError, "reach 1e.20, beyond"),
    "no weight": ({"weights": torch.zeros(3)}, DataError, "all weights are 0"),
    "a negative weight": ({"weights": torch.tensor([1.0, -2, 1])}, DataError, "but one is -2"),
    "a NaN weight": ({"weights": torch.tensor([1, NAN, 1])}, NonFiniteError, "weights hold NaN"),
    "too few weights": ({"weights": torch.ones(2)}, ConfigError, "one value per point, 3 in all"),
}


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_clustered_is_refused(case):
    changes, error, message = BAD[case]
    arguments = {"points": torch.arange(6.0).view(1, 3, 2), "num_clusters": 2, **changes}
    with pytest.raises(error, match=message) as refusal:
        kmeans(**arguments)
    assert "\n" not in str(refusal.value)


def test_the_result_is_float32_whatever_the_points_are():
    for dtype in (torch.float64, torch.bfloat16):
        found = kmeans(normal(1, 100, 2).to(dtype), 3)
        assert isinstance(found, Clustering)
        assert found.centroids.dtype == found.mse.dtype == torch.float32


def test_autocast_does_not_reach_into_the_search():
    points = normal(1, 500, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = kmeans(points, 20, engine="torch")
    assert torch.equal(inside.centroids, kmeans(points, 20, engine="torch").centroids)


def test_progress_goes_to_standard_error(capfd):
    kmeans(normal(2, 100, 2), 3, progress=True)
    out, err = capfd.readouterr()
    assert out == ""
    assert "k-means" in err
    assert "100%" in err


def test_a_tolerance_stops_sooner_at_nearly_the_same_error():
    points = normal(2, 2_000, 4)
    exact = kmeans(points, 40, iterations=200)
    sooner = kmeans(points, 40, iterations=200, tolerance=0.005)
    assert sooner.iterations < exact.iterations / 2
    assert (sooner.mse <= 1.05 * exact.mse).all()
    assert kmeans(points, 40, iterations=200, tolerance=0.9).iterations <= 2


@pytest.mark.parametrize("tolerance", [-0.1, 1.0])
def test_a_tolerance_is_a_share(tolerance):
    with pytest.raises(ConfigError, match="tolerance must be >= 0 and < 1"):
        kmeans(normal(1, 10, 2), 2, tolerance=tolerance)
