"""Contract suites: what every table, store and row optimizer must do, as checks to run.

A check is a function of a factory and fails with an `AssertionError`. The library runs them over
`TABLES`, `STORES` and `ROW_OPTIMIZERS`; whoever writes a representation of their own runs them too:

    from outsize.testing import TABLE_CHECKS

    @pytest.mark.parametrize("check", TABLE_CHECKS)
    def test_my_table_keeps_the_contract(check):
        check(lambda spec, seed=0: MyTable(spec, seed=seed))
"""

from outsize.testing.optimizers import OPTIMIZER_CHECKS
from outsize.testing.stores import STORE_CHECKS
from outsize.testing.tables import TABLE_CHECKS

__all__ = ["OPTIMIZER_CHECKS", "STORE_CHECKS", "TABLE_CHECKS"]
