import pytest
import torch

from outsize.errors import ConfigError
from outsize.hashing import hash_ids
from outsize.spec import TableSpec
from outsize.tables import HashEmbeddingTable, build_table

SPEC = TableSpec("table", num_rows=1000, dim=16)


@pytest.mark.parametrize("num_hashes", [1, 2, 3])
@pytest.mark.parametrize("num_importance", [50, 1000])
def test_vectors_are_weighted_sums_of_shared_rows(num_hashes, num_importance):
    table = HashEmbeddingTable(
        SPEC, num_buckets=20, num_importance=num_importance, num_hashes=num_hashes
    )
    for i in (0, 1, 500, 999):
        expected = torch.zeros(16)
        (owner,) = hash_ids(torch.tensor(i), table.hashes[-1:], num_importance)
        for j in range(num_hashes):
            (bucket,) = hash_ids(torch.tensor(i), table.hashes[j : j + 1], 20)
            weight = table.importance[i if num_importance == 1000 else owner, j]
            expected = expected + weight * table.weight[bucket]
        torch.testing.assert_close(table(torch.tensor(i)), expected)


def test_a_budget_is_halved():
    table = build_table("hash-embedding", SPEC, max_params=1000)
    assert table.weight.shape == (31, 16)
    assert table.importance.shape == (252, 2)


def test_what_importance_weights_cannot_use_goes_to_rows():
    table = build_table("hash-embedding", SPEC, max_params=8000)
    assert table.importance.shape == (1000, 2)
    assert table.weight.shape == (6000 // 16, 16)


def test_ids_with_weights_of_their_own_all_differ():
    table = HashEmbeddingTable(SPEC, num_buckets=4, num_importance=1000)
    torch.nn.init.normal_(table.importance)
    vectors = table(torch.arange(1000))
    assert torch.unique(vectors, dim=0).shape[0] == 1000


def test_the_papers_draw_is_normal():
    table = build_table("hash-embedding", SPEC, max_params=8000, papers_init=True)
    assert 0.09 < table.weight.std() < 0.11
    assert 0.00045 < table.importance.std() < 0.00055
    assert table.weight.abs().max() > 0.3


def test_no_hashes_are_refused():
    with pytest.raises(ConfigError, match="num_hashes must be >= 1, but got 0"):
        build_table("hash-embedding", SPEC, max_params=1000, num_hashes=0)
