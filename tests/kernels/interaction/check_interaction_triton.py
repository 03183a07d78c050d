"""Checks of the products of pairs on CPU tensors, run under Triton's interpreter."""

from interaction_checks import assert_products_and_gradients_are_exact
from interpreted import mend_interpreter

if __name__ == "__main__":
    mend_interpreter()
    assert_products_and_gradients_are_exact()
    print("all checks passed")
