"""Lines of float32 at addresses."""

import pytest
import torch

pytest.importorskip("numba")


@pytest.mark.parametrize("dim", [1, 2, 7, 8, 13])
def test_a_line_of_zeros_is_found_whatever_their_signs(dim):
    from outsize.kernels.lines_numba import is_zero

    line = torch.zeros(dim)
    line[::2] = -0.0
    assert is_zero(line.data_ptr(), dim)
    for place in range(dim):
        for value in (1e-45, -1.0, torch.nan):
            other = line.clone()
            other[place] = value
            assert not is_zero(other.data_ptr(), dim)


@pytest.mark.parametrize("dim", [1, 8, 11])
def test_a_sum_starts_without_a_negative_zero(dim):
    from outsize.kernels.lines_numba import start_sum

    line, total = -torch.zeros(dim), torch.ones(dim)
    start_sum(line.data_ptr(), total.data_ptr(), dim)
    assert not total.signbit().any()
