import pytest
import torch
import torch.nn.functional as F

from outsize.errors import ConfigError, DataError
from outsize.search import ItemIndex, Repair, fit_map

DIM = 8


def unit(num, seed):
    return F.normalize(torch.randn(num, DIM, generator=torch.Generator().manual_seed(seed)), dim=1)


def encoder(vectors):
    return lambda keys: vectors[[int(key) for key in keys]]


@pytest.fixture
def index(tmp_path):
    with ItemIndex.create(tmp_path / "index", DIM) as made:
        made.write([str(i) for i in range(100)], unit(100, 0), "v1")
        yield made


def test_the_most_asked_are_encoded_first_and_then_the_oldest(index):
    index.write(["0", "1"], unit(2, 1), "v2")
    for _ in range(2):
        index.search(index.read(["70"]), 1)
    index.search(index.read(["1"]), 1)
    new = unit(100, 2)
    report = index.refresh(encoder(new), "v3", 5)
    assert (report.num_encoded, report.num_stale) == (5, 95)
    assert index.versions() == {"v1": 94, "v2": 1, "v3": 5}
    assert index.keys()[-5:] == ["70", "1", "2", "3", "4"]
    torch.testing.assert_close(index.read(["70"])[0], new[70])


@pytest.mark.parametrize("order", ["oldest", "random"])
def test_other_orders_reach_everything_in_the_end(index, order):
    new = unit(100, 2)
    left = [index.refresh(encoder(new), "v2", 30, order=order, seed=3).num_stale for _ in range(4)]
    assert left == [70, 40, 10, 0]
    torch.testing.assert_close(index.read([str(i) for i in range(100)]), new)
    assert index.refresh(encoder(new), "v2", 30, order=order).num_encoded == 0


def test_a_refresh_that_fails_keeps_whole_batches_and_goes_on_later(index):
    new, calls = unit(100, 2), []

    def encode(keys):
        calls.append(keys)
        if len(calls) == 3:
            raise RuntimeError("the encoder was stopped")
        return new[[int(key) for key in keys]]

    with pytest.raises(RuntimeError, match="stopped"):
        index.refresh(encode, "v2", 50, batch_size=10)
    assert index.versions() == {"v1": 80, "v2": 20}
    assert index.refresh(encode, "v2", 50, batch_size=10).num_stale == 30
    encoded = [key for keys in calls[:2] + calls[3:] for key in keys]
    assert set(index.versions_of(encoded)) == {"v2"}
    assert len(set(encoded)) == len(encoded) == 70


def test_settings_that_cannot_be_are_refused(index):
    encode = encoder(unit(100, 2))
    with pytest.raises(ConfigError, match="order must be one of asked, oldest, random"):
        index.refresh(encode, "v2", 5, order="askd")
    with pytest.raises(ConfigError, match="budget must be >= 0"):
        index.refresh(encode, "v2", -1)
    with pytest.raises(DataError, match=r"shape \(5, 3\) for 5 items of dim 8"):
        index.refresh(lambda keys: torch.ones(len(keys), 3), "v2", 5)
    assert index.versions() == {"v1": 100}


def test_a_search_repairs_its_candidates_and_ranks_by_the_new_vectors(index):
    new = unit(100, 2)
    queries = unit(3, 4)
    candidates = (queries @ unit(100, 0).T).topk(8, dim=1).indices
    expected = [
        [str(int(row)) for row in line[(q @ new[line].T).argsort(descending=True)][:4]]
        for q, line in zip(queries, candidates, strict=True)
    ]
    reader = ItemIndex.open(index.path)
    for asked in (reader, index):
        found = asked.search(queries, 4, repair=Repair(encoder(new), "v2", 2))
        assert found.keys == expected
        assert found.versions == [["v2"] * 4] * 3
        assert found.num_repaired == len(candidates.unique())
    assert reader.versions() == {"v1": 100}
    assert index.versions() == {"v1": 100 - found.num_repaired, "v2": found.num_repaired}
    again = index.search(queries, 4, repair=Repair(encoder(new), "v2", 2))
    assert again.num_repaired < found.num_repaired


def test_a_rotation_of_all_vectors_is_learned_from_a_few(index):
    rotation = torch.linalg.qr(torch.randn(DIM, DIM, generator=torch.Generator().manual_seed(5)))[0]
    new = unit(100, 0) @ rotation
    report = index.refresh(encoder(new), "v2", 40, order="random", correct=True)
    assert report.num_moved == report.num_stale == 60
    assert report.maps["v1"].after < 0.2 < 2.0 < report.maps["v1"].before
    keys = [str(i) for i in range(100)]
    assert index.versions() == {"v1": 60, "v2": 40}
    assert float((index.read(keys) - new).square().sum(dim=1).mean()) < 0.1
    other = unit(100, 0) @ rotation @ rotation  # the vectors that were moved move on from there
    report = index.refresh(encoder(other), "v3", 40, order="random", correct=True)
    assert set(report.maps) == {"v2"}
    assert float((index.read(keys) - other).square().sum(dim=1).mean()) < 0.2


def test_a_map_that_does_not_help_is_not_applied(index):
    new = unit(100, 9)
    before = index.read([str(i) for i in range(100)])
    noise = before + 0.05 * new
    report = index.refresh(encoder(noise), "v2", 15, order="random", correct=True)
    assert not report.maps["v1"].helps or report.num_moved == 85
    few = index.refresh(encoder(noise), "v3", 3, order="random", correct=True)
    assert few.num_moved == 0  # too few pairs to measure a map


def test_a_map_keeps_lengths_and_few_pairs_make_none():
    old = 3 * unit(60, 0)
    found = fit_map(old, old)
    torch.testing.assert_close(found(old), old, atol=1e-4, rtol=1e-4)
    assert found.before == 0.0
    assert not found.helps
    assert fit_map(old[:9], old[:9]) is None
