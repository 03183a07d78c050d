"""Functions with docstrings in Python files, found by parsing them: nothing is imported or run."""

from __future__ import annotations

import ast
import inspect
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
_PARSE_ERRORS = (SyntaxError, ValueError, RecursionError, MemoryError)


@dataclass(frozen=True)
class PythonFunction:
    """A function with a docstring.

    Attributes:
        name: Its dotted name, such as `heapq.merge`.
        summary: The first paragraph of its docstring, on one line.
        source: Its source without the docstring.
        line: The line of the file it begins on, from 1.
    """

    name: str
    summary: str
    source: str
    line: int


def functions_of(source: bytes, module: str) -> Iterator[PythonFunction]:
    """The functions and methods of a file that have a docstring, in the order of the file.

    A file that is not valid Python, or not in its declared encoding, has none.

    Args:
        source: The content of the file.
        module: The dotted name of its module.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # such as invalid escapes in strings
            tree = ast.parse(source)
        text = _decoded(source)
    except _PARSE_ERRORS:
        return
    lines = text.splitlines()
    yield from _inside(tree.body, module, lines)


def module_name(path: Path, root: Path) -> str:
    """The dotted name of the module of a file below a folder of `sys.path`."""
    parts = list(path.relative_to(root).with_suffix("").parts)
    if parts[-1] == "__init__" and len(parts) > 1:
        parts.pop()
    return ".".join(parts)


def _decoded(source: bytes) -> str:
    import io
    import tokenize

    encoding, _ = tokenize.detect_encoding(io.BytesIO(source).readline)
    return source.decode(encoding)


def _inside(body: list[ast.stmt], prefix: str, lines: list[str]) -> Iterator[PythonFunction]:
    """The functions of a module or a class, and of classes in it."""
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield from _inside(node.body, f"{prefix}.{node.name}", lines)
        elif isinstance(node, ast.If | ast.Try):
            others = [*getattr(node, "orelse", []), *getattr(node, "finalbody", [])]
            yield from _inside([*node.body, *others], prefix, lines)
        elif isinstance(node, _FunctionNode):
            found = _function(node, prefix, lines)
            if found is not None:
                yield found


def _function(node: _FunctionNode, prefix: str, lines: list[str]) -> PythonFunction | None:
    first = node.body[0]
    if not isinstance(first, ast.Expr) or not isinstance(first.value, ast.Constant):
        return None
    docstring = first.value.value
    if not isinstance(docstring, str) or len(node.body) < 2:
        return None  # with a docstring alone there is nothing to find
    summary = " ".join(inspect.cleandoc(docstring).partition("\n\n")[0].split())
    start = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    last = first.end_lineno or first.lineno
    if node.body[1].lineno <= last or first.lineno == node.lineno:
        return None  # on one line with its docstring
    code = [*lines[start - 1 : first.lineno - 1], *lines[last : node.end_lineno]]
    source = inspect.cleandoc("\n" + "\n".join(code))
    return PythonFunction(f"{prefix}.{node.name}", summary, source, start)
