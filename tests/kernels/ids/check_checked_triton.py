"""Checks of `checked_ids` in Triton, run as a script under its interpreter."""

from id_checks import assert_equals_the_reference
from interpreted import mend_interpreter

if __name__ == "__main__":
    mend_interpreter()
    assert_equals_the_reference("cpu")
    print("all checks passed")
