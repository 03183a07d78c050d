import pytest
import torch
from draw_checks import DTYPES
from hypothesis import given
from hypothesis import strategies as st

from outsize.kernels.softmax.tuning import DeviceLimits, default_tuning, queries_per_pass


@pytest.mark.parametrize("dtype", DTYPES)
@given(
    num_queries=st.integers(1, 5000),
    num_items=st.integers(1, 1 << 24),
    dim=st.integers(1, 4096),
    num=st.integers(0, 1000),
    has_descriptors=st.booleans(),
    shared_bytes=st.sampled_from([48 << 10, 99 << 10, 163 << 10, 227 << 10]),
)
def test_sizes_fit_the_device_and_each_other(
    dtype, num_queries, num_items, dim, num, has_descriptors, shared_bytes
):
    limits = DeviceLimits(shared_bytes, has_descriptors)
    tuning = default_tuning(num_queries, num_items, dim, dtype, num, limits)
    bytes_of_a_number = {torch.float32: 4, torch.bfloat16: 2, torch.int8: 2}[dtype]
    tiles = (tuning.query_tile + tuning.item_tile) * tuning.depth * tuning.num_stages
    assert tiles * bytes_of_a_number <= shared_bytes
    assert 16 <= tuning.block <= tuning.item_tile
    for size in (tuning.query_tile, tuning.item_tile, tuning.depth, tuning.draw_depth):
        assert size >= 16
        assert size & (size - 1) == 0


@given(
    num_queries=st.integers(1, 1 << 16),
    num_items=st.integers(1, 1 << 26),
    num=st.sampled_from([0, 1, 16]),
)
def test_the_log_sum_exps_kept_are_bounded(num_queries, num_items, num):
    limits = DeviceLimits(227 << 10, True)
    tuning = default_tuning(num_queries, num_items, 128, torch.bfloat16, num, limits)
    some = queries_per_pass(num_items, tuning)
    bytes_of_a_query = 4 * -(-num_items // tuning.block)
    assert some * bytes_of_a_query <= max(128 << 20, tuning.query_tile * bytes_of_a_query)
    assert some % tuning.query_tile == 0


@pytest.mark.parametrize("num", [1, 16])
@pytest.mark.parametrize("size", [(256, 1 << 20, 768), (1024, 1 << 20, 768), (1024, 1 << 22, 128)])
def test_a_thousand_queries_are_asked_at_once(size, num):
    tuning = default_tuning(*size, torch.bfloat16, num, DeviceLimits(227 << 10, True))
    assert queries_per_pass(size[1], tuning) >= size[0]


@given(log2=st.integers(10, 24), wanted=st.integers(1, 300))
def test_a_product_is_split_without_a_remainder_if_parts_can_be_even(log2, wanted):
    pytest.importorskip("triton")
    from outsize.kernels.softmax.triton.mean_launches import terms_per_part

    terms = terms_per_part(1 << log2, wanted)
    assert terms % 64 == 0
    assert terms >= 1024
    parts = (1 << log2) // terms
    assert parts < 2 * wanted
    if 1024 * wanted <= 1 << (log2 - 1):
        assert terms * parts == 1 << log2
        assert parts >= wanted
