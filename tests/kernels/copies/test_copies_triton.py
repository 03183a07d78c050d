from pathlib import Path

import pytest
import torch
from interpreted import needs_triton, run_interpreted


@needs_triton
def test_triton_passes_are_the_torch_passes_under_the_interpreter():
    run_interpreted(Path(__file__).with_name("check_copies_triton.py"))


@pytest.mark.gpu
@torch.no_grad()
def test_triton_passes_are_the_torch_passes_on_the_device():
    pytest.importorskip("triton")
    from copies_checks import check_copies

    check_copies("cuda")
