"""Rows of methods that are measured one by one, in the table of all."""

from benchmarks.negatives.real_data import METHODS, merged


def test_new_rows_join_the_others_in_the_order_of_the_methods():
    first, second, third = list(METHODS)[:3]
    earlier = {"rows": [{"method": third, "seconds": 1}, {"method": first, "seconds": 2}]}
    rows = merged(
        earlier, [{"method": second, "seconds": 3}, {"method": first, "seconds": 4}], "now"
    )
    assert [row["method"] for row in rows] == [first, second, third]
    assert [row["seconds"] for row in rows] == [4, 3, 1]
    assert ["measured_at" in row for row in rows] == [True, True, False]
