from pathlib import Path

import pytest
import torch
from interpreted import needs_triton, run_interpreted


@needs_triton
def test_a_directory_in_triton_is_the_reference_under_the_interpreter():
    run_interpreted(Path(__file__).with_name("check_directory_triton.py"))


@pytest.mark.gpu
@torch.no_grad()
def test_a_directory_in_triton_is_the_reference_on_the_device():
    pytest.importorskip("triton")
    from directory_checks import check_directory

    check_directory("cuda")
