from pathlib import Path

import pytest
import torch
from interpreted import needs_triton, run_interpreted


@needs_triton
def test_triton_writes_and_reads_the_bytes_of_torch_under_the_interpreter():
    run_interpreted(Path(__file__).with_name("check_wire_triton.py"))


@pytest.mark.gpu
@torch.no_grad()
def test_triton_writes_and_reads_the_bytes_of_torch_on_the_device():
    pytest.importorskip("triton")
    from wire_checks import check_wire

    check_wire("cuda")
