"""Launching the same Triton kernels again and again, in a fraction of the usual time.

To find what was compiled for its arguments, Triton looks up settings, dtypes and alignments, and
asks the driver about each pointer: 50 to 100 µs per launch, longer than most kernels here take.
What was compiled is kept here by what compilation depends on, and is called with plain addresses.

How compiled kernels are called is Triton's own affair and changes between its versions. With one
that is not known here, kernels are launched in the usual way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import triton
from torch import Tensor
from triton.runtime import JITFunction, driver

_KNOWN_VERSIONS = ("3.6.",)

_is_known = triton.__version__.startswith(_KNOWN_VERSIONS)
_compiled: dict[tuple[object, ...], Any] = {}


def launch(kernel: Any, grid: tuple[int, ...], arguments: Sequence[Any], **constants: Any) -> None:
    """`kernel[grid](*arguments, **constants)` on the current device.

    Args:
        kernel: A kernel of a module, whose compile-time constants come after all arguments.
        grid: Numbers of programs.
        arguments: One per argument: tensors on the current device, tensor descriptors, numbers.
        constants: Compile-time constants and launch options, always in the same order.
    """
    if not (_is_known and isinstance(kernel, JITFunction)):  # the other is its interpreter's
        kernel[grid](*arguments, **constants)
        return
    device = driver.active.get_current_device()
    kinds: list[object] = [id(kernel), device, *constants.items()]
    values: list[object] = []
    for argument in arguments:
        if isinstance(argument, Tensor):
            address = argument.data_ptr()
            kinds += (argument.dtype, address % 16)
            values.append(address)
            continue
        values.append(argument)
        if isinstance(argument, int | float):
            kinds.append(kind_of_number(argument))
        else:
            kinds += (argument.base.dtype, *argument.block_shape)
    kind = tuple(kinds)
    found = _compiled.get(kind)
    if found is None:
        are_constants = [parameter.is_constexpr for parameter in kernel.params]
        num_constants = sum(are_constants)
        assert are_constants == [False] * len(arguments) + [True] * num_constants, "see above"
        _compiled[kind] = kernel[grid](*arguments, **constants), num_constants
        return
    compiled, num_constants = found
    compiled.run(
        *grid,
        *(1,) * (3 - len(grid)),
        driver.active.get_current_stream(device),
        compiled.function,
        compiled.packed_metadata,
        None,  # no hook is called
        None,
        None,
        *values,
        *(None,) * num_constants,
    )


def kind_of_number(number: float) -> object:
    """What a kernel that is given a number may be compiled for: its type, a one, a multiple of 16.

    A kernel may have been told not to look at these: then it is kept more often than necessary.
    """
    if not isinstance(number, int) or isinstance(number, bool):
        return type(number)
    bits = 32 if -(1 << 31) <= number < 1 << 31 else 64 if number < 1 << 63 else -64
    return number == 1, number % 16 == 0, bits


def ceil_div(number: int, divisor: int) -> int:
    """The number of parts of a size; `triton.cdiv` takes microseconds."""
    return -(-number // divisor)


def power_of_two(least: int) -> int:
    """The least power of two that is not below a number >= 1."""
    return 1 << (least - 1).bit_length()
