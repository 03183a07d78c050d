import pytest
import torch

from outsize.errors import ConfigError
from outsize.hashing import hash_ids, hash_signs
from outsize.spec import TableSpec
from outsize.tables import RobeTable, build_table


@pytest.mark.parametrize("signs", [False, True])
@pytest.mark.parametrize(("dim", "widths"), [(8, [2, 2, 2, 2]), (17, [5, 4, 4, 4])])
def test_blocks_are_stretches_of_one_array_that_wraps_around(dim, widths, signs):
    table = RobeTable(TableSpec("table", num_rows=200, dim=dim), size=23, signs=signs)
    num_wrapped = 0
    for i in range(200):
        starts = hash_ids(torch.tensor(i), table.hashes, 23).tolist()
        factors = hash_signs(torch.tensor(i), table.hashes).tolist()
        expected = []
        for start, factor, width in zip(starts, factors, widths, strict=True):
            num_wrapped += start + width > 23
            for k in range(width):
                value = table.weight[(start + k) % 23].item()
                expected.append(value * factor if signs else value)
        assert table(torch.tensor(i)).tolist() == expected
    assert num_wrapped > 0


def test_signs_are_of_both_kinds():
    spec = TableSpec("table", num_rows=1000, dim=1)
    table = RobeTable(spec, size=1, columns=1, signs=True)
    positive = (table(torch.arange(1000)) * table.weight > 0).float().mean()
    assert 0.45 < positive < 0.55


def test_a_budget_is_used_to_the_last_number():
    spec = TableSpec("table", num_rows=1000, dim=16)
    assert build_table("robe", spec, max_params=1237).size == 1237


def test_the_smallest_array_holds_one_block():
    spec = TableSpec("table", num_rows=1000, dim=17)
    assert build_table("robe", spec, max_params=5).size == 5
    with pytest.raises(ConfigError, match="smallest robe table needs 5 parameters"):
        build_table("robe", spec, max_params=4)


def test_more_blocks_than_numbers_are_refused():
    with pytest.raises(ConfigError, match="columns must be between 1 and its dim of 2, but got 4"):
        build_table("robe", TableSpec("table", num_rows=9, dim=2), max_params=9, columns=4)
