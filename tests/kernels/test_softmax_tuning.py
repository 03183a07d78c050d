import pytest
import torch
from draw_checks import DTYPES
from hypothesis import given
from hypothesis import strategies as st

from outsize.kernels.softmax_tuning import default_tuning


@pytest.mark.parametrize("dtype", DTYPES)
@given(
    num_queries=st.integers(1, 5000),
    num_items=st.integers(1, 1 << 24),
    shared_bytes=st.sampled_from([48 << 10, 99 << 10, 163 << 10, 227 << 10]),
)
def test_sizes_fit_the_device_and_each_other(dtype, num_queries, num_items, shared_bytes):
    tuning = default_tuning(num_queries, num_items, dtype, shared_bytes)
    bytes_of_a_number = {torch.float32: 4, torch.bfloat16: 2, torch.int8: 2}[dtype]
    tiles = (tuning.query_tile + tuning.item_tile) * tuning.depth * tuning.num_stages
    assert tiles * bytes_of_a_number <= shared_bytes
    assert 16 <= tuning.block <= tuning.item_tile
    for size in (tuning.query_tile, tuning.item_tile, tuning.depth, tuning.draw_depth):
        assert size >= 16
        assert size & (size - 1) == 0


def test_the_log_sum_exps_kept_are_bounded():
    tuning = default_tuning(1024, 1 << 22, torch.bfloat16, 227 << 10)
    assert 1024 * (1 << 22) // tuning.block * 4 <= 128 << 20
