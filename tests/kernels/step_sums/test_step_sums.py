"""The sum of losses, and the number of steps before it became NaN."""

from pathlib import Path

import pytest
from interpreted import needs_triton, run_interpreted
from step_sum_checks import FLAWS, STEPS, added, assert_steps_are_added

from outsize.kernels.step_sums.step_sums import add_step


def test_losses_are_added_and_counted():
    total, count = added(add_step, STEPS, "cpu")
    assert total == pytest.approx(1e30)
    assert count == len(STEPS)


@pytest.mark.parametrize("flaw", FLAWS)
def test_steps_are_counted_up_to_the_first_flaw(flaw):
    total, count = added(add_step, [*STEPS[:3], flaw, *STEPS], "cpu")
    assert count == 3
    assert not abs(total) < float("inf")


@needs_triton
def test_the_kernel_means_the_same_under_the_interpreter():
    run_interpreted(Path(__file__).with_name("check_step_sums_triton.py"))


@pytest.mark.gpu
def test_the_kernel_means_the_same_on_cuda():
    assert_steps_are_added("cuda")
