import math

import pytest
import torch

from outsize.hashing import draw_hashes, hash_ids
from outsize.tables.diagnosis import (
    diagnose_pointers,
    pointer_entropies,
    pointer_warning,
    spread_ids,
)

N, K = 50_000, 64


def random_pointers(columns=3, seed=0):
    return hash_ids(torch.arange(N), draw_hashes(columns, seed), K)


def entropy(values):
    counts = torch.tensor([values.count(v) for v in set(values)], dtype=torch.float64)
    share = counts / counts.sum()
    return -(share * share.log()).sum().item()


def test_entropies_are_the_least_over_columns_and_pairs():
    table = torch.tensor([[1, 0, 1], [2, 2, 3], [1, 0, 3], [3, 1, 0], [2, 2, 1]])
    rows = table.tolist()
    singles = [entropy([row[j] for row in rows]) for j in range(3)]
    pairs = [entropy([(row[a], row[b]) for row in rows]) for a, b in ((0, 1), (0, 2), (1, 2))]
    triple = entropy([tuple(row) for row in rows])
    assert pointer_entropies(table) == pytest.approx((min(singles), min(pairs), triple))
    # The second column is a permutation of the first, as in the text's example of collapse.
    assert pointer_entropies(table)[1] == pytest.approx(singles[0])


def test_codes_at_the_end_of_the_range_do_not_collide_with_others():
    # With the multiplier max(h), as printed, (2, 0) and (0, 1) would be one pair.
    table = torch.tensor([[2, 0], [0, 1], [1, 0], [1, 1]])
    assert pointer_entropies(table)[1] == pytest.approx(math.log(4))


def test_random_pointers_have_the_greatest_entropy_and_are_called_random():
    diagnosis = diagnose_pointers(random_pointers(seed=3), K)
    assert diagnosis.entropies[0] == pytest.approx(math.log(K), rel=1e-3)
    assert diagnosis.entropies[1] == pytest.approx(2 * math.log(K), rel=1e-2)
    assert diagnosis.entropies == pytest.approx(diagnosis.random, rel=1e-2)
    assert diagnosis.warning.startswith("only CE, slower")


def test_a_column_of_few_codes_is_called_collapsed():
    pointers = random_pointers()
    pointers[:, 1] %= 4
    diagnosis = diagnose_pointers(pointers, K)
    assert diagnosis.warning.startswith("collapse: a column uses few of its codes (H1 1.39")


def test_columns_that_repeat_each_other_are_called_collapsed():
    pointers = random_pointers()
    pointers[:, 2] = (pointers[:, 0] + 7) % K
    diagnosis = diagnose_pointers(pointers, K)
    assert diagnosis.entropies[1] == pytest.approx(diagnosis.entropies[0], rel=1e-3)
    assert diagnosis.warning.startswith("collapse: two columns say nearly the same")


def test_clusters_of_unequal_sizes_are_healthy():
    uneven = (torch.rand(N, 3, generator=torch.Generator().manual_seed(0)) ** 2 * K).long()
    assert diagnose_pointers(uneven, K).warning == ""


def test_product_quantization_is_the_yardstick_where_it_is_known():
    random, quantized = (4.0, 8.0), (3.0, 5.5)
    assert pointer_warning((3.1, 5.6), random, quantized) == ""
    assert "as random as hashes" in pointer_warning((3.9, 7.9), random, quantized)
    assert "product quantization" in pointer_warning((1.4, 2.8), random, quantized)
    assert "collapse: two" in pointer_warning((3.0, 3.4), random, quantized)


def test_ids_are_spread_evenly():
    assert spread_ids(5, 10).tolist() == [0, 1, 2, 3, 4]
    assert spread_ids(100, 5).tolist() == [0, 20, 40, 60, 80]


def test_many_columns_cost_no_more_than_linear():
    pointers = torch.randint(9, (500, 64), generator=torch.Generator().manual_seed(0))
    assert len(pointer_entropies(pointers)) == 4
