"""What kernels were launched with under Triton's interpreter, and compiling them for a GPU.

    TRITON_INTERPRET=1 python launches.py record FILE SCRIPT   # runs a script of checks
    python launches.py compile FILE                            # needs no GPU

The interpreter runs kernels as Python, so it accepts what the compiler does not.
"""

import importlib
import inspect
import json
import runpy
import sys
from pathlib import Path

CAPABILITY = 90
_TYPES = {
    "float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "float64": "fp64", "bool": "i1",
    "int8": "i8", "uint8": "u8", "int16": "i16", "int32": "i32", "int64": "i64",
}  # fmt: skip


def record(script):
    """Run a script, and return each kind of launch once."""
    from triton.runtime.interpreter import InterpretedFunction

    found = {}
    run = InterpretedFunction.run

    def recording(kernel, *arguments, grid, warmup, **named):
        given = dict(zip(kernel.arg_names, arguments, strict=False))
        given |= {name: value for name, value in named.items() if name in kernel.arg_names}
        options = {name: value for name, value in named.items() if name not in kernel.arg_names}
        constants = kernel.fn.__annotations__
        fixed = kernel.kwargs["do_not_specialize"] or ()
        types = {
            name: _type_of(value, is_constant=name in constants, may_be_one=name not in fixed)
            for name, value in given.items()
        }
        found[json.dumps([kernel.fn.__module__, kernel.fn.__name__, types, options])] = None
        return run(kernel, *arguments, grid=grid, warmup=warmup, **named)

    InterpretedFunction.run = recording
    sys.path.insert(0, str(Path(script).parent))
    runpy.run_path(script, run_name="__main__")
    return list(found)


def _type_of(value, is_constant, may_be_one):
    """The type that Triton compiles for, or ["constant", value] if it compiles for a value."""
    if hasattr(value, "data_ptr"):
        return "*" + _TYPES[str(value.dtype).removeprefix("torch.")]
    if hasattr(value, "block_shape"):
        item = _TYPES[str(value.base.dtype).removeprefix("torch.")]
        return f"tensordesc<{item}[{', '.join(map(str, value.block_shape))}]>"
    value = getattr(value, "value", value)
    if is_constant or value is None or (value == 1 and may_be_one and type(value) is int):
        return ["constant", value]
    if isinstance(value, bool):
        return "i1"
    if isinstance(value, int):
        return "i32" if -(1 << 31) <= value < 1 << 31 else "i64"
    return "fp32"


def compile_all(launches):
    """Compile kernels as they were launched; returns their names, and what was wrong."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    target, names, flaws = GPUTarget("cuda", CAPABILITY, 32), set(), []
    for launch in launches:
        module, name, types, options = json.loads(launch)
        kernel = getattr(importlib.import_module(module), name)
        parameters = inspect.signature(kernel.fn).parameters
        types = {n: types.get(n, ["constant", p.default]) for n, p in parameters.items()}
        constants = {n: kind[1] for n, kind in types.items() if isinstance(kind, list)}
        signature = {n: "constexpr" if n in constants else kind for n, kind in types.items()}
        try:
            triton.compile(ASTSource(kernel, signature, constants), target, options)
        except Exception as error:
            flaws.append(f"{name} {types}: {type(error).__name__}: {error}")
        names.add(name)
    return names, flaws


def kernels_of_package():
    """The names of all kernels that are launched, rather than called by others."""
    import outsize

    root = Path(outsize.__file__).parent
    names = set()
    for path in root.rglob("*.py"):
        if "triton.jit" in (text := path.read_text()):
            parts = path.relative_to(root.parent).with_suffix("").parts
            module = importlib.import_module(".".join(parts))
            names |= {n for n in vars(module) if n.endswith("_kernel") and f"def {n}(" in text}
    return names


if __name__ == "__main__":
    work, file = sys.argv[1], Path(sys.argv[2])
    if work == "record":
        file.write_text("\n".join(record(sys.argv[3])))
    else:
        names, flaws = compile_all(file.read_text().splitlines())
        print(json.dumps({"missing": sorted(kernels_of_package() - names), "flaws": flaws}))
