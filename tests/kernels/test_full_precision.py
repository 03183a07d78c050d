"""Products in full precision, and the user's settings afterwards."""

import pytest
import torch

from outsize.kernels.full_precision import full_precision, is_full_precision

CPU = torch.zeros(1)
HAS_SETTINGS = hasattr(getattr(torch.backends.mkldnn, "matmul", None), "fp32_precision")
needs_settings = pytest.mark.skipif(
    not HAS_SETTINGS, reason="this torch has one setting for all devices"
)


@pytest.fixture(autouse=True)
def restored():
    yield
    if HAS_SETTINGS:
        torch.backends.fp32_precision = "none"
    torch.set_float32_matmul_precision("highest")
    if HAS_SETTINGS:  # nothing is set by default
        for backend in (torch.backends.cuda, torch.backends.mkldnn):
            backend.matmul.fp32_precision = "none"


@pytest.mark.parametrize("precision", ["highest", "high", "medium"])
def test_the_setting_for_all_is_left_as_it_was(precision):
    torch.set_float32_matmul_precision(precision)
    assert is_full_precision(CPU) == (precision == "highest")
    with full_precision(CPU):
        assert is_full_precision(CPU)
        with full_precision(CPU):
            assert is_full_precision(CPU)
    assert torch.get_float32_matmul_precision() == precision
    assert is_full_precision(CPU) == (precision == "highest")


@needs_settings
@pytest.mark.parametrize("precision", ["bf16", "tf32", "ieee"])
def test_the_setting_of_a_device_is_left_as_it_was(precision):
    torch.backends.cuda.matmul.fp32_precision = "tf32"  # differs: torch's old getter raises now
    torch.backends.mkldnn.matmul.fp32_precision = precision
    with full_precision(CPU):
        assert is_full_precision(CPU)
        assert torch.backends.cuda.matmul.fp32_precision == "tf32"
    assert torch.backends.mkldnn.matmul.fp32_precision == precision


@needs_settings
def test_what_was_taken_from_the_setting_for_all_still_is():
    torch.backends.fp32_precision = "tf32"
    with pytest.raises(ZeroDivisionError), full_precision(CPU):
        raise ZeroDivisionError
    assert torch.backends.mkldnn.matmul.fp32_precision == "tf32"
    torch.backends.fp32_precision = "none"
    assert is_full_precision(CPU)


@pytest.mark.gpu
def test_products_are_exact_on_cuda_whatever_is_set():
    torch.set_float32_matmul_precision("high")
    left = torch.randn(512, 512, device="cuda")
    exact = left.double() @ left.double()
    with full_precision(left):
        found = left @ left
    assert (found - exact).abs().max() < 1e-3 * (left @ left - exact).abs().max() + 5e-4
