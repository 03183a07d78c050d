"""All mutants of a source file: the file with one small change each.

A mutant swaps an operator, negates a condition, changes a number or a truth value, swaps a function
for its opposite, or drops a statement. Annotations, docstrings, messages of errors, assertions and
decorators are left alone, since no test can be expected to notice them.
"""

from __future__ import annotations

import ast
import copy
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
    ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.Mod: ast.Add, ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.LShift: ast.RShift, ast.RShift: ast.LShift,
}  # fmt: skip
_OPPOSITES = {
    "min": "max", "max": "min", "any": "all", "all": "any", "zeros": "ones", "ones": "zeros",
    "zeros_like": "ones_like", "ones_like": "zeros_like", "argmin": "argmax", "argmax": "argmin",
    "clamp_min": "clamp_max", "clamp_max": "clamp_min", "amin": "amax", "amax": "amin",
    "zero_": "clone", "logical_and": "logical_or", "logical_or": "logical_and",
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """One change of one file.

    Attributes:
        path: The file, relative to the root of the repository.
        function: Qualified name of the function or class around it.
        lines: First and last line of what changes.
        before: What stands there, on one line.
        after: What the mutant has instead.
        occurrence: How many equal changes in the same function come before it.
        source: The whole file with the change.
        at_import: Whether it runs when the module is imported, and not in a call.
    """

    path: str
    function: str
    lines: tuple[int, int]
    before: str
    after: str
    occurrence: int
    source: str
    at_import: bool = False

    @property
    def name(self) -> str:
        """What identifies the mutant while the code around it changes."""
        number = f" #{self.occurrence + 1}" if self.occurrence else ""
        return f"{self.path} {self.function}: {self.before} → {self.after}{number}"


def mutants_of(root: Path, path: str) -> list[Mutant]:
    """All mutants of a file, in the order of its lines.

    Args:
        root: The root of the repository.
        path: The file, relative to it.
    """
    source = (root / path).read_text()
    found: list[Mutant] = []
    seen: Counter[tuple[str, str, str]] = Counter()
    for function, at_import, node, changed in _changes(ast.parse(source), "", True):
        if isinstance(node, ast.If) and isinstance(changed, ast.If):  # only its condition changes
            node, changed = node.test, changed.test
        before = " ".join(ast.unparse(node).split())
        after = "pass" if isinstance(changed, ast.Pass) else " ".join(ast.unparse(changed).split())
        key = (function, before, after)
        text = _replaced(source, node, changed)
        lines = (node.lineno, node.end_lineno or node.lineno)
        found.append(Mutant(path, function, lines, before, after, seen[key], text, at_import))
        seen[key] += 1
    return found


def _changes(
    node: ast.AST, function: str, at_import: bool
) -> Iterator[tuple[str, bool, ast.expr | ast.stmt, ast.expr | ast.stmt]]:
    """(function, at import?, node, the node to put in its place) for every change below a node."""
    if isinstance(node, ast.Raise | ast.Assert | ast.Import | ast.ImportFrom | ast.JoinedStr):
        return
    if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
        function = f"{function}.{node.name}".removeprefix(".")
        defaults = node.args.defaults if isinstance(node, ast.FunctionDef) else []
        for default in defaults:
            yield from _changes(default, function, at_import)
        for child in node.body:
            yield from _changes(child, function, at_import and isinstance(node, ast.ClassDef))
        return
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return  # a docstring
    if isinstance(node, ast.expr | ast.stmt):
        for changed in _changed(node):
            yield function, at_import, node, changed
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "type_params", "keywords_names"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _changes(child, function, at_import)


def _changed(node: ast.expr | ast.stmt) -> Iterator[ast.expr | ast.stmt]:
    """The changes of one node itself."""
    changed = copy.deepcopy(node)
    match changed:
        case ast.Compare(ops=[op, *_]) if type(op) in _COMPARISONS:
            changed.ops[0] = _COMPARISONS[type(op)]()
            yield changed
        case ast.BinOp(op=op) if type(op) in _OPERATORS:
            changed.op = _OPERATORS[type(op)]()
            yield changed
        case ast.AugAssign(op=op) if type(op) in _OPERATORS:
            changed.op = _OPERATORS[type(op)]()
            yield changed
        case ast.BoolOp(op=op):
            changed.op = ast.Or() if isinstance(op, ast.And) else ast.And()
            yield changed
        case ast.UnaryOp(op=ast.Not() | ast.Invert() | ast.USub(), operand=operand):
            if not isinstance(operand, ast.Constant):
                yield operand
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(value=int(value) | float(value)):
            yield ast.Constant(value + 1)
        case ast.Call(func=ast.Attribute(attr=name)) if name in _OPPOSITES:
            assert isinstance(changed.func, ast.Attribute)
            changed.func.attr = _OPPOSITES[name]
            yield changed
        case ast.Call(func=ast.Name(id=name)) if name in _OPPOSITES:
            assert isinstance(changed.func, ast.Name)
            changed.func.id = _OPPOSITES[name]
            yield changed
        case ast.IfExp(body=body, orelse=orelse):
            changed.body, changed.orelse = orelse, body
            yield changed
        case ast.If(test=test):
            if not isinstance(test, ast.Compare | ast.BoolOp | ast.UnaryOp):
                changed.test = ast.UnaryOp(ast.Not(), test)
                yield changed
        case ast.Expr(value=ast.Call()):
            yield ast.Pass()
        case _:
            pass


def _replaced(source: str, node: ast.expr | ast.stmt, changed: ast.expr | ast.stmt) -> str:
    """The source with one node replaced; other lines keep their numbers where they can."""
    lines = source.encode().splitlines(keepends=True)
    text = ast.unparse(changed)
    if isinstance(changed, ast.expr):
        text = f"({text})"
    start = sum(map(len, lines[: node.lineno - 1])) + node.col_offset
    last = node.end_lineno or node.lineno
    end = sum(map(len, lines[: last - 1])) + (node.end_col_offset or 0)
    whole = b"".join(lines)
    return (whole[:start] + text.encode() + whole[end:]).decode()
