"""Linear layers with a ReLU by Triton."""

from pathlib import Path

import pytest
import torch
from interpreted import needs_triton, run_interpreted
from linear_checks import (
    assert_nan_passes,
    assert_passed_gradients_are_those_of_torch,
    assert_products_are_as_exact_as_those_of_torch,
    check_layer,
)


@needs_triton
def test_gradients_are_those_of_torch_under_the_interpreter():
    run_interpreted(Path(__file__).with_name("check_linear_triton.py"))


@pytest.mark.gpu
def test_gradients_are_those_of_torch_on_cuda():
    assert_passed_gradients_are_those_of_torch("cuda", lines=20)
    assert_nan_passes("cuda")
    if torch.cuda.get_device_capability() >= (9, 0):
        sizes = ((16_384, 256, 512), (5_001, 256, 96), (20_001, 64, 256))
        assert_products_are_as_exact_as_those_of_torch("cuda", sizes)
    check_layer("cuda")
