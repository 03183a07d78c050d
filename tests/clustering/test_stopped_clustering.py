"""A clustering that is asked to stop ends between pieces of bounded work."""

import pytest
import torch

from outsize.clustering import faiss_engine, kmeans, nearest
from outsize.clustering.nearest import choose_engine
from outsize.clustering.sampling import draw_distinct
from outsize.clustering.seeding import _CHUNK, distinct_rows, first_centroids
from outsize.interrupts import StopRequested, stopping_when

ENGINES = ["torch", pytest.param("faiss", marks=pytest.mark.skipif(
    not faiss_engine.is_available(), reason="no faiss"))]  # fmt: skip


def points(num, dim=4, seed=0):
    return torch.randn(1, num, dim, generator=torch.Generator().manual_seed(seed))


def questions(work):
    """How often work asks whether to stop."""
    asked = []
    with stopping_when(lambda: bool(asked.append(None))):
        work()
    return len(asked)


def stopped_at(number, work):
    """Whether work ends at the question with this number, counted from 1, and asks no more."""
    asked = []

    def asks():
        asked.append(None)
        return len(asked) >= number

    with stopping_when(asks), pytest.raises(StopRequested):
        work()
    return len(asked) == number


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("init", ["afk-mc2", "k-means++", "random"])
def test_k_means_can_be_stopped_at_its_start_and_in_every_iteration(init, engine):
    cloud = points(3000)

    def work(iterations):
        return lambda: kmeans(cloud, 20, iterations=iterations, init=init, engine=engine)

    none, five = questions(work(0)), questions(work(5))
    assert none >= 2  # while it seeds, and while it measures what came out
    assert five - none >= 2 * 5
    for number in (1, none // 2, five - 1):
        assert stopped_at(max(1, number), work(5))


@pytest.mark.parametrize("engine", ENGINES)
def test_an_assignment_can_be_stopped_before_every_chunk(engine):
    many, centroids = points(300_000), points(50, seed=1)
    chunk = choose_engine(engine, many)(centroids[0]).chunk_points
    assert questions(lambda: nearest(many, centroids, engine)) == -(-300_000 // chunk) > 2


@pytest.mark.skipif(not faiss_engine.is_available(), reason="no faiss")
def test_faiss_searches_very_many_centroids_in_blocks_with_the_same_result(monkeypatch):
    cloud, centroids = points(40_000), points(1000, seed=1)
    centroids[0, 700:] = centroids[0, :300]  # equal centroids in different blocks
    whole = nearest(cloud, centroids, "faiss")
    alone = questions(lambda: nearest(cloud, centroids, "faiss"))
    monkeypatch.setattr(faiss_engine, "_MAX_PRODUCTS", (1 << 15) * 4 * 130)
    assert torch.equal(nearest(cloud, centroids, "faiss"), whole)
    blocks = -(-1000 // 130)
    assert questions(lambda: nearest(cloud, centroids, "faiss")) == alone * blocks


def test_a_sample_of_very_many_points_can_be_stopped():
    weights = torch.ones(1).expand((1 << 21) + 1)
    generator = torch.Generator().manual_seed(0)
    assert questions(lambda: draw_distinct(weights, 10, generator)) == 3


@pytest.mark.parametrize("dim", [1, 3])
def test_distinct_rows_are_those_of_torch(dim):
    generator = torch.Generator().manual_seed(0)
    some = torch.randint(-3, 3, (500, dim), generator=generator).float()
    assert torch.equal(distinct_rows(some), torch.unique(some, dim=0))
    assert questions(lambda: distinct_rows(some)) == dim
    assert distinct_rows(some[:0]).shape == (0, dim)
    assert torch.equal(distinct_rows(some[:1]), some[:1])


@pytest.mark.parametrize("num_distinct", [5, 40])
def test_few_distinct_points_among_many_are_found_piece_by_piece(num_distinct):
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(num_distinct, 2, generator=generator)
    many = values[torch.randint(num_distinct, (2 * _CHUNK + 5,), generator=generator)]
    weights = torch.ones(len(many), dtype=torch.float64)

    def search(some, centroids):
        return torch.cdist(some, centroids).argmin(dim=1)

    found = first_centroids("random", many, weights, 20, generator, search)
    assert found.shape == (20, 2)
    if num_distinct <= 20:
        assert torch.equal(distinct_rows(found), torch.unique(values, dim=0))
    assert set(map(tuple, found.tolist())) <= set(map(tuple, values.tolist()))
