import pytest
import torch
import torch.nn.functional as F

from outsize.errors import ConfigError
from outsize.search import ApproximateSearch, ItemIndex

pytest.importorskip("faiss")


@pytest.fixture
def index(tmp_path):
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(20, 16, generator=generator)
    chosen = torch.randint(20, (1200,), generator=generator)
    items = F.normalize(centres[chosen] + 0.5 * torch.randn(1200, 16, generator=generator), dim=1)
    with ItemIndex.create(tmp_path / "index", 16) as made:
        made.write([f"k{i}" for i in range(1200)], items, "v1")
        made.delete(["k3", "k4"])
        made.write(["k5", "new"], items[:2], "v2")
        yield made


@pytest.mark.parametrize("kind", ["ivf", "hnsw"])
def test_more_effort_finds_more_and_most_is_found(index, kind):
    queries = index.read([f"k{i}" for i in range(10, 60)])
    recalls = [
        ApproximateSearch(index, kind, effort=effort).recall(queries) for effort in (1, 10, 300)
    ]
    assert recalls[0] < recalls[-1]
    assert recalls[-1] > 0.98
    found = ApproximateSearch(index, kind, effort=300).search(queries, 3)
    exact = index.search(queries, 3)
    assert [line[0] for line in found.keys] == [line[0] for line in exact.keys]
    assert found.scores[:, 0].tolist() == pytest.approx(exact.scores[:, 0].tolist(), abs=1e-5)


def test_deleted_items_are_not_found_and_versions_are_told(index):
    search = ApproximateSearch(index, effort=1000)
    found = search.search(index.read(["new"]), 1300)
    assert len(found.keys[0]) == 1199
    assert not {"k3", "k4"} & set(found.keys[0])
    assert {found.versions[0][found.keys[0].index(key)] for key in ("k5", "new")} == {"v2"}
    assert found.scores.shape == (1, 1300)


def test_settings_that_cannot_be_are_refused(index, tmp_path):
    with pytest.raises(ConfigError, match='kind must be "ivf" or "hnsw"'):
        ApproximateSearch(index, "flat")
    with pytest.raises(ConfigError, match="effort must be >= 1"):
        ApproximateSearch(index, effort=0)
    with (
        ItemIndex.create(tmp_path / "empty", 2) as empty,
        pytest.raises(ConfigError, match="has no items"),
    ):
        ApproximateSearch(empty)
