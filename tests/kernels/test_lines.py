"""Lines of float32 at addresses."""

import numpy as np
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


@pytest.mark.parametrize(
    "name", ["copy_scaled", "add_line", "add_scaled", "divide_line", "put_sum"]
)
def test_lines_of_any_width_are_rounded_as_torch_does_and_nothing_else_is_written(name):
    from outsize.kernels import lines_numba

    draw = torch.Generator().manual_seed(0)
    for dim in (1, 3, 4, 7, 8, 11, 12, 15, 16, 17, 29, 31, 64):
        source, target, other = torch.randn(3, dim + 1, generator=draw)
        expected = {
            "copy_scaled": source * 0.3,
            "add_line": target + source,
            "add_scaled": target + source * 0.3,
            "divide_line": source / 0.3,
            "put_sum": source + other,
        }[name]
        expected[-1] = target[-1]
        more = {"add_line": (), "put_sum": (other.data_ptr(),)}.get(name, (np.float32(0.3),))
        getattr(lines_numba, name)(source.data_ptr(), target.data_ptr(), dim, *more)
        assert torch.equal(target, expected), dim
