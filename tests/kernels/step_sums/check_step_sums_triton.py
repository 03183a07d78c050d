"""Checks of the sums of steps on CPU tensors, run under Triton's interpreter."""

from interpreted import mend_interpreter
from step_sum_checks import assert_steps_are_added

mend_interpreter()
assert_steps_are_added()
print("all checks passed")
