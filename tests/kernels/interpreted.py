"""Checks of Triton kernels on CPU tensors: scripts that run under Triton's interpreter."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

import outsize

# Where memory begins and ends that kernels may read beside that of their tensors.
ALSO_INSIDE: list[tuple[int, int]] = []
needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="triton is not installed"
)


def interpreter_paths():
    """The folders that scripts of checks import from."""
    source = str(Path(outsize.__file__).parent.parent)
    here = str(Path(__file__).parent)
    return os.pathsep.join([source, here, os.environ.get("PYTHONPATH", "")])


def run_interpreted(script):
    """Run a script under the interpreter; it prints "all checks passed" at its end."""
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": interpreter_paths()}
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True)
    assert done.stdout.endswith("all checks passed\n"), done.stderr[-3000:]


def mend_interpreter():
    """Make the interpreter of Triton 3.6 do what the compiled language does.

    It multiplies the bits of bfloat16 as if they were integers, casts integers to those bits, cuts
    float32 to bfloat16 instead of rounding it, and turns arrays of one number to an index in a way
    that numpy 2.4 refuses.
    """
    import numpy as np
    import triton.language as tl
    from triton.runtime import interpreter

    builder = interpreter.InterpreterBuilder
    dot, cast, patch = builder.create_dot, builder.cast_impl, interpreter._patch_lang_tensor

    def mended_dot(self, left, right, *rest):
        sides = (
            self.create_fp_ext(side, tl.float32) if side.dtype.scalar == tl.bfloat16 else side
            for side in (left, right)
        )
        return dot(self, *sides, *rest)

    def mended_cast(self, source, target):
        if target.scalar == tl.bfloat16 and not source.dtype.scalar.is_floating():
            source = cast(self, source, tl.float32)
        if target.scalar == tl.bfloat16 and source.dtype.scalar == tl.float32:
            bits = np.ascontiguousarray(source.data, dtype=np.float32).view(np.uint32)
            rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
            rounded = np.where(np.isnan(source.data), 0x7FC0, rounded).astype(np.uint16)
            return interpreter.TensorHandle(rounded.reshape(source.data.shape), tl.bfloat16)
        return cast(self, source, target)

    def mended_patch(tensor, *scopes):
        patch(tensor, *scopes)
        for scope in scopes:  # which earlier versions do not have
            scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    builder.create_dot, builder.cast_impl = mended_dot, mended_cast
    interpreter._patch_lang_tensor = mended_patch
    refuse_accesses_outside()


def refuse_accesses_outside():
    """Raise where a kernel reads or writes memory of none of the tensors that it was given."""
    import numpy as np
    from triton.runtime import interpreter

    function, builder = interpreter.InterpretedFunction, interpreter.InterpreterBuilder
    run, given = function.run, []

    def run_within(kernel, *arguments, grid, warmup, **named):
        found = [*arguments, *named.values()]
        found = [each.base if hasattr(each, "block_shape") else each for each in found]
        given[:] = [_extent(each) for each in found if hasattr(each, "data_ptr") and each.numel()]
        return run(kernel, *arguments, grid=grid, warmup=warmup, **named)

    def require_inside(pointers, mask):
        is_read = True if mask is None else mask.data
        places = pointers.data[np.broadcast_to(is_read, pointers.data.shape)]
        num_bytes = max(1, pointers.get_element_ty().primitive_bitwidth // 8)
        inside = np.zeros(places.shape, dtype=bool)
        for begin, end in (*given, *ALSO_INSIDE):
            inside |= (places >= begin) & (places + np.uint64(num_bytes) <= end)
        assert inside.all(), "a kernel reads or writes outside of its tensors"

    def guarded(access, pointers_at, mask_at):
        def guarded_access(self, *arguments, **named):
            mask = None if mask_at is None else arguments[mask_at]
            require_inside(arguments[pointers_at], mask)
            return access(self, *arguments, **named)

        return guarded_access

    function.run = run_within
    for name, pointers_at, mask_at in (
        ("create_masked_load", 0, 1),
        ("create_masked_store", 0, 2),
        ("create_atomic_rmw", 1, 3),
        ("create_atomic_cas", 0, None),
    ):
        setattr(builder, name, guarded(getattr(builder, name), pointers_at, mask_at))


def _extent(tensor):
    """Where the memory of a tensor begins and ends."""
    last = sum(
        (size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )
    return tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size()
