"""Contract suites: checks that every table, store and row optimizer must pass.

A check is a function that takes a factory and raises an `AssertionError` if it fails. The library
runs the suites over `TABLES`, `STORES` and `ROW_OPTIMIZERS`. Run them over your own class, too:

    from outsize.testing import TABLE_CHECKS

    @pytest.mark.parametrize("check", TABLE_CHECKS)
    def test_my_table_keeps_the_contract(check):
        check(lambda spec, seed=0: MyTable(spec, seed=seed))

A factory makes a table of `(spec, seed=0)`, a store of `(specs)` or a row optimizer of
`(store, learning_rate=…)`; a class that takes these is a factory itself.
"""

from outsize.testing.optimizers import OPTIMIZER_CHECKS
from outsize.testing.stores import STORE_CHECKS
from outsize.testing.tables import TABLE_CHECKS

__all__ = ["OPTIMIZER_CHECKS", "STORE_CHECKS", "TABLE_CHECKS"]
