"""Run the parts of a kernel on a team of OpenMP threads, without Python between them.

`GOMP_parallel` calls a function in every thread of a team with one pointer. Here it points to a
tuple on the caller's stack: what the team shares, and the arguments of the kernel. Functions of
OpenMP are called by their addresses, which differ between processes and so are arguments too.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any, no_type_check

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.imputils import impl_ret_borrowed
from numba.extending import intrinsic

Compile = Callable[[Callable[..., Any], Any], Any]
"""Compiles a function for a signature, and returns numba's dispatcher."""


@intrinsic
def _stored(typing_context: Any, values: Any) -> Any:
    """The address of a tuple that is valid until the caller returns."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place = cgutils.alloca_once_value(builder, arguments[0])
        return builder.ptrtoint(place, context.get_value_type(types.int64))

    return types.int64(values), generate


@intrinsic
def _loaded(typing_context: Any, address: Any, type_reference: Any) -> Any:
    """The value of a type at an address."""
    found = type_reference.instance_type

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place = builder.inttoptr(arguments[0], context.get_value_type(found).as_pointer())
        return impl_ret_borrowed(context, builder, found, builder.load(place))

    return found(types.int64, type_reference), generate


@intrinsic
def _number_from(typing_context: Any, function: Any) -> Any:
    """Call `int function(void)` by its address."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        target = ir.FunctionType(ir.IntType(32), []).as_pointer()
        number = builder.call(builder.inttoptr(arguments[0], target), [])
        return builder.sext(number, context.get_value_type(types.int64))

    return types.int64(types.int64), generate


@intrinsic
def _start_team(
    typing_context: Any, parallel: Any, work: Any, shared: Any, num_threads: Any
) -> Any:
    """Call `void GOMP_parallel(void work(void *), void *shared, unsigned, unsigned)`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        target = ir.FunctionType(ir.VoidType(), [pointer, pointer, number, number]).as_pointer()
        function, *pointers = (
            builder.inttoptr(value, kind)
            for value, kind in zip(arguments[:3], (target, pointer, pointer), strict=True)
        )
        builder.call(function, [*pointers, builder.trunc(arguments[3], number), number(0)])
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), generate


_kernel: Any = None  # `_bound` gives each kernel functions with globals of their own
_shared_type: Any = None


@no_type_check
def _work(shared):
    """Run every n-th part, as a thread of a team of n; a team may be smaller than was asked for."""
    thread_number, team_size, parts, arguments = _loaded(shared, _shared_type)
    for part in range(_number_from(thread_number), parts, _number_from(team_size)):
        _kernel(part, parts, *arguments)


@no_type_check
def _launch(openmp, work, parts, arguments):
    """Start a team, whose threads call `work`; returns when all parts have run."""
    shared = _stored((openmp[1], openmp[2], parts, arguments))
    _start_team(openmp[0], work, shared, parts)


def on_team(kernel: Any, compile: Compile, openmp: Any) -> Callable[..., None]:
    """A function that runs all parts of a kernel: `run(parts, *arguments)`.

    Args:
        kernel: The dispatcher of a compiled function of `part`, `parts` and more arguments, all
            of which are numbers or contiguous arrays, that raises nothing.
        compile: Compiles functions, as the kernel was.
        openmp: The addresses of `GOMP_parallel`, `omp_get_thread_num` and `omp_get_num_threads`.
    """
    [kernel_types] = kernel.nopython_signatures
    given = types.BaseTuple.from_types(kernel_types.args[2:])
    shared = types.BaseTuple.from_types((*[types.int64] * 3, given))
    work = compile(_bound(_work, kernel, shared), types.void(types.int64))
    code = work.get_compile_result(work.nopython_signatures[0])
    address = code.library.get_pointer_to_function(code.fndesc.llvm_cfunc_wrapper_name)
    signature = types.void(types.int64[::1], types.int64, types.int64, given)
    launch = compile(_bound(_launch, kernel, shared), signature)

    def run(parts: int, *arguments: Any) -> None:
        launch(openmp, address, parts, arguments)

    return run


def _bound(template: Any, kernel: Any, shared: types.Type) -> Callable[..., Any]:
    """A function of its own name with the code of a template, for one kernel.

    The kernel is a global name of it, and not in a closure, which numba would not cache.
    """
    names = {**template.__globals__, "_kernel": kernel, "_shared_type": shared}
    bound = FunctionType(template.__code__, names, argdefs=template.__defaults__)
    bound.__module__ = kernel.py_func.__module__
    bound.__name__ = bound.__qualname__ = f"{kernel.py_func.__name__}{template.__name__}"
    return bound
