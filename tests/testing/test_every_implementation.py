"""Whatever is in a registry keeps its contract, simply by being there."""

import pytest

from outsize.optimizers import ROW_OPTIMIZERS
from outsize.stores import STORES
from outsize.tables import TABLES, Int8Table, PackedCCETable, build_table, quantize
from outsize.testing import OPTIMIZER_CHECKS, STORE_CHECKS, TABLE_CHECKS

pytestmark = pytest.mark.usefixtures("unchecked_shapes_if_compiling")


@pytest.mark.parametrize("check", TABLE_CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("method", TABLES)
def test_every_table_keeps_the_contract(method, check):
    def make(spec, **options):
        half = None if method == "full" else spec.num_rows * spec.dim // 2
        return build_table(method, spec, max_params=half, **options)

    check(make)


@pytest.mark.parametrize("check", TABLE_CHECKS, ids=lambda check: check.__name__)
def test_a_quantized_table_keeps_the_contract(check):
    def make(spec, seed=0):
        return quantize(build_table("full", spec, seed=seed), codes=spec.num_rows // 8)

    check(make)


@pytest.mark.parametrize("check", TABLE_CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("share", [1, 4], ids=["slots for all", "slots for some"])
def test_a_packed_cce_table_keeps_the_contract(share, check):
    def make(spec, seed=0):
        rows, slots = max(4, spec.num_rows // 8), spec.num_rows // share
        return PackedCCETable(spec, num_buckets=rows, num_slots=slots, seed=seed)

    check(make)


@pytest.mark.parametrize(
    "check",
    [check for check in TABLE_CHECKS if check.__name__ != "parameters_learn"],  # rows are fixed
    ids=lambda check: check.__name__,
)
def test_an_int8_table_keeps_the_contract(check):
    def make(spec, seed=0):
        return Int8Table.from_table(build_table("full", spec, seed=seed))

    check(make)


@pytest.mark.parametrize("check", STORE_CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("kind", STORES)
def test_every_store_keeps_the_contract(kind, check):
    check(STORES[kind])


@pytest.mark.parametrize("check", OPTIMIZER_CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("kind", ROW_OPTIMIZERS)
def test_every_row_optimizer_keeps_the_contract(kind, check):
    check(ROW_OPTIMIZERS[kind])
