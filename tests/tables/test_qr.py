import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from outsize.errors import ConfigError
from outsize.spec import TableSpec
from outsize.tables import QRTable, build_table
from outsize.tables.digits import balanced_bases, root_up, split_digits

SPEC = TableSpec("table", num_rows=100, dim=4)


@given(num_rows=st.integers(1, 3000), num_digits=st.integers(1, 4))
def test_distinct_ids_have_distinct_digits(num_rows, num_digits):
    bases = balanced_bases(num_rows, num_digits)
    digits = torch.stack(split_digits(torch.arange(num_rows), bases), dim=1)
    assert torch.unique(digits, dim=0).shape[0] == num_rows
    assert (digits >= 0).all()
    assert (digits < torch.tensor(bases)).all()


@given(number=st.integers(1, 10**12), power=st.integers(1, 6))
def test_roots_are_exact(number, power):
    root = root_up(number, power)
    assert (root - 1) ** power < number <= root**power


def test_digits_are_exact_above_what_a_float_holds():
    ids = [2**24 + 1, 2**26 - 1, 2**53 + 1, 2**62 - 1]
    remainders, quotients = split_digits(torch.tensor(ids), [4, 2**60])
    assert remainders.tolist() == [i % 4 for i in ids]
    assert quotients.tolist() == [i // 4 for i in ids]


@pytest.mark.parametrize("combine", ["multiply", "add"])
def test_vectors_are_the_rows_of_the_digits_combined(combine):
    table = QRTable(SPEC, base=5, num_digits=3, combine=combine)
    assert table.bases == [5, 5, 4]
    for i in (0, 7, 44, 99):
        rows = [table.weight[place] for place in (i % 5, 5 + i // 5 % 5, 10 + i // 25)]
        expected = math.prod(rows) if combine == "multiply" else sum(rows)
        torch.testing.assert_close(table(torch.tensor(i)), expected)


@pytest.mark.parametrize("combine", ["multiply", "add"])
def test_all_vectors_differ(combine):
    table = QRTable(SPEC, base=10, combine=combine)
    torch.nn.init.normal_(table.weight)
    vectors = table(torch.arange(100))
    assert torch.unique(vectors, dim=0).shape[0] == 100


@pytest.mark.parametrize(
    ("num_vectors", "bases"),
    [(100, [100]), (99, [97, 2]), (20, [10, 10]), (19, [8, 8, 2]), (14, [5, 5, 4])],
)
def test_a_budget_sets_the_largest_base_with_the_fewest_digits(num_vectors, bases):
    assert build_table("qr", SPEC, max_params=num_vectors * 4).bases == bases


def test_more_digits_can_be_asked_for():
    assert build_table("qr", SPEC, max_params=400, num_digits=3).bases == [9, 9, 2]


def test_the_base_says_how_many_digits_there_are():
    assert QRTable(SPEC, base=3).bases == [3, 3, 3, 3, 2]


def test_dlrms_draw_is_uniform_by_the_height_of_each_table():
    spec = TableSpec("table", num_rows=100_000, dim=64)
    weight = QRTable(spec, base=1000, papers_init=True).weight
    for rows in weight.split([1000, 100]):
        bound = rows.shape[0] ** -0.5
        assert 0.99 * bound < rows.abs().max() <= bound


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_digits": 8}, "num_digits must be between 1 and 7 for 100 rows, but got 8"),
        ({"num_digits": 0}, "num_digits must be between 1 and 7"),
        ({"combine": "concat"}, "combine must be multiply or add, but got 'concat'"),
    ],
)
@pytest.mark.usefixtures("unchecked_shapes")
def test_what_makes_no_sense_is_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        build_table("qr", SPEC, max_params=100, **options)
    with pytest.raises(ConfigError, match="base must be >= 2, but got 1"):
        QRTable(SPEC, base=1)
