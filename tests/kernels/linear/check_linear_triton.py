"""Checks of linear layers with a ReLU on CPU tensors, run under Triton's interpreter."""

from importlib import import_module

from interpreted import mend_interpreter
from linear_checks import (
    assert_nan_passes,
    assert_passed_gradients_are_those_of_torch,
    assert_products_are_as_exact_as_those_of_torch,
    check_layer,
)


def check_layer_by_triton():
    """The layer as it is on CUDA."""
    import_module("outsize.kernels.linear.linear_relu").uses_triton = lambda *_: True
    check_layer()


if __name__ == "__main__":
    mend_interpreter()
    assert_passed_gradients_are_those_of_torch()
    assert_nan_passes()
    assert_products_are_as_exact_as_those_of_torch()
    check_layer_by_triton()
    print("all checks passed")
