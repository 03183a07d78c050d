"""Kernels that are launched again, by what they were compiled for."""

import pytest

pytest.importorskip("triton")

import torch
import triton
import triton.language as tl

from outsize.kernels.launches_triton import kind_of_number, launch


@triton.jit(do_not_specialize=["fixed"])
def weigh_kernel(out, number, fixed, factor, num, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.zeros((BLOCK,), tl.int64) + number + fixed
    tl.store(out + place, value.to(tl.float64) * factor, mask=place < num)


def test_numbers_that_triton_compiles_apart_are_kept_apart():
    largest = (1 << 31) - 1
    assert kind_of_number(2) == kind_of_number(3) == kind_of_number(largest) == kind_of_number(-5)
    assert kind_of_number(0) == kind_of_number(16) == kind_of_number(-(1 << 31))
    assert kind_of_number(0.0) == kind_of_number(1.0) == kind_of_number(2.5)
    apart = [1, True, 2, 16, 1.0, largest + 2, largest + 1, 1 << 63, (1 << 63) + 1]
    assert len({kind_of_number(number) for number in apart}) == len(apart)


@pytest.mark.gpu
def test_a_kernel_that_was_launched_before_reads_what_it_is_given_now():
    most = 1 << 40
    numbers = [1, 2, 3, 16, 32, 0, -1, -16, -(1 << 31), (1 << 31) - 1, 1 << 31, most, most + 1]
    out = torch.zeros(70, dtype=torch.float64, device="cuda")
    for _ in range(2):
        for number in numbers:
            for fixed in (1, 2, 16, most):
                for start in (0, 1):  # aligned to 16 bytes, or not
                    out.zero_()
                    arguments = (out[start:], number, fixed, 0.5, 69)
                    launch(weigh_kernel, (5,), arguments, BLOCK=16)
                    assert (out[start : start + 69] == (number + fixed) * 0.5).all()
                    assert out[start + 69 :].abs().sum() == 0


@pytest.mark.gpu
def test_a_constant_before_an_argument_is_refused():
    @triton.jit
    def kernel(out, BLOCK: tl.constexpr, num):
        tl.store(out + tl.arange(0, BLOCK), num)

    with pytest.raises(AssertionError):
        launch(kernel, (1,), (torch.zeros(16, device="cuda"), 3), BLOCK=16)
