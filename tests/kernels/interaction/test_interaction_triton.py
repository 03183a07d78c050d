"""The products of pairs and their gradients by Triton."""

from pathlib import Path

import pytest
from interaction_checks import assert_products_and_gradients_are_exact
from interpreted import needs_triton, run_interpreted


@needs_triton
def test_products_and_gradients_are_exact_under_the_interpreter():
    run_interpreted(Path(__file__).with_name("check_interaction_triton.py"))


@pytest.mark.gpu
def test_products_and_gradients_are_exact_on_cuda():
    assert_products_and_gradients_are_exact("cuda", batch=1000)
