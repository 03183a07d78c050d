"""Linear layers with a ReLU by Triton."""

from pathlib import Path

import pytest
from interpreted import needs_triton, run_interpreted
from linear_checks import (
    assert_nan_passes,
    assert_passed_gradients_are_those_of_torch,
    check_layer,
)


@needs_triton
def test_gradients_are_those_of_torch_under_the_interpreter():
    run_interpreted(Path(__file__).with_name("check_linear_triton.py"))


@pytest.mark.gpu
def test_gradients_are_those_of_torch_on_cuda():
    assert_passed_gradients_are_those_of_torch("cuda", lines=20)
    assert_nan_passes("cuda")
    check_layer("cuda")
