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
        arguments: Tensors on the current device, tensor descriptors, and numbers.
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
        if isinstance(argument, int):  # ones and multiples of 16 are compiled for
            kinds.append((argument == 1, argument % 16 == 0, argument.bit_length() < 32))
        elif isinstance(argument, float):
            kinds.append(float)
        else:
            kinds += (argument.base.dtype, *argument.block_shape)
    kind = tuple(kinds)
    found = _compiled.get(kind)
    if found is None:
        _compiled[kind] = kernel[grid](*arguments, **constants), _num_constants(kernel)
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


def _num_constants(kernel: Any) -> int:
    return sum(parameter.is_constexpr for parameter in kernel.params)


def ceil_div(number: int, divisor: int) -> int:
    """The number of parts of a size; `triton.cdiv` takes microseconds."""
    return -(-number // divisor)


def power_of_two(least: int) -> int:
    """The least power of two that is not below a number >= 1."""
    return 1 << (least - 1).bit_length()
