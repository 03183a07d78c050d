"""JSON read from disk and checked against a schema before anything believes it.

A schema is a plain value that looks like what it describes:

- `str`, `bool`, `int` or `float` (which also takes whole numbers) describe one value; `object` any;
  another class describes its instances, for trees that hold more than JSON can;
- `Whole(minimum)` describes a whole number that is not below a minimum; `Word(word, ...)` describes
  one of several texts;
- `[schema]` describes a list whose members all fit the schema; `(schema, ...)` describes a list of
  as many members, each with a schema of its own;
- `{"name": schema, ...}` describes an object that has at least these members; `Absent(schema)` lets
  one of them be missing;
- `Each(schema)` describes an object with any names, whose values all fit the schema;
- `OneOf(schema, ...)` describes what fits any of several schemas; `None` describes null.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class SchemaError(ValueError):
    """JSON that does not fit its schema; says where, and what was found there."""


@dataclass(frozen=True)
class Whole:
    """A whole number of 64 bits that is not below a minimum."""

    minimum: int = 0


class Word:
    """One of several texts."""

    def __init__(self, *words: str) -> None:
        self.words = words


@dataclass(frozen=True)
class Absent:
    """A member of an object that may be missing."""

    schema: Any


@dataclass(frozen=True)
class Each:
    """An object with any names, whose values all fit one schema."""

    schema: Any


class OneOf:
    """What fits any of several schemas."""

    def __init__(self, *schemas: Any) -> None:
        self.schemas = schemas


FILE_FACTS = {"bytes": Whole(), "sha256": str}
"""What `outsize.files` says of a file it has written."""

_WORDS = {str: "text", bool: "true or false", int: "a whole number", float: "a number"}


def read_json(path: Path, schema: Any) -> Any:
    """Read a file and check it.

    Raises:
        SchemaError: It is not JSON, or does not fit; one line that does not name the file.
        OSError: It cannot be read.
    """
    return parse_json(path.read_bytes(), schema)


def parse_json(content: bytes | str, schema: Any) -> Any:
    """Parse JSON and check it; a `SchemaError` where it is not JSON or does not fit."""
    try:
        value = json.loads(content)
        check(value, schema)
    except SchemaError:
        raise
    except RecursionError:
        raise SchemaError("it is nested too deeply") from None
    except ValueError as error:  # not JSON, or not UTF-8
        raise SchemaError(f"it is not JSON ({error})") from None
    return value


def check(value: Any, schema: Any, where: str = "") -> None:
    """Raise a `SchemaError` where a value does not fit a schema.

    Args:
        value: What `json.loads` gives.
        schema: What it must look like.
        where: Its place in the file, for the error.
    """
    if not _fits_kind(value, schema):
        raise SchemaError(f"{where or 'it'} is {_shown(value)} where {_described(schema)} belongs")
    if isinstance(schema, list):
        for i, member in enumerate(value):
            check(member, schema[0], f"{where}[{i}]")
    elif isinstance(schema, tuple):
        for i, (member, wanted) in enumerate(zip(value, schema, strict=True)):
            check(member, wanted, f"{where}[{i}]")
    elif isinstance(schema, Each):
        for name, member in value.items():
            check(member, schema.schema, _member(where, name))
    elif isinstance(schema, dict):
        for name, wanted in schema.items():
            if name in value:
                inner = wanted.schema if isinstance(wanted, Absent) else wanted
                check(value[name], inner, _member(where, name))
            elif not isinstance(wanted, Absent):
                raise SchemaError(f"{_member(where, name)} is missing")
    elif isinstance(schema, OneOf):
        matching = next(s for s in schema.schemas if _fits_kind(value, s))
        check(value, matching, where)


def _fits_kind(value: Any, schema: Any) -> bool:
    """Whether a value is of the kind a schema describes, whatever its members are."""
    if schema is None or schema is object:
        return schema is object or value is None
    if isinstance(schema, OneOf):
        return any(_fits_kind(value, s) for s in schema.schemas)
    if isinstance(schema, Whole):
        return _fits_kind(value, int) and schema.minimum <= value < 1 << 63
    if isinstance(schema, Word):
        return isinstance(value, str) and value in schema.words
    if isinstance(schema, list):
        return isinstance(value, list)
    if isinstance(schema, tuple):
        return isinstance(value, list) and len(value) == len(schema)
    if isinstance(schema, dict | Each):
        return isinstance(value, dict)
    if schema in (int, float) and isinstance(value, bool):
        return False
    if schema is float and isinstance(value, int):
        return abs(value) <= sys.float_info.max
    return isinstance(value, schema)


def _member(where: str, name: str) -> str:
    shown = name if name.isprintable() and len(name) <= 80 else f"{json.dumps(name[:80])}"
    return f"{where}.{shown}" if where else shown


def _shown(value: Any) -> str:
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    if value is not None and not isinstance(value, bool | int | float | str):
        return f"a {type(value).__name__}"
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _described(schema: Any) -> str:
    if schema is None:
        return "null"
    if isinstance(schema, OneOf):
        return " or ".join(_described(s) for s in schema.schemas)
    if isinstance(schema, Whole):
        return f"a whole number of at least {schema.minimum}"
    if isinstance(schema, Word):
        return " or ".join(json.dumps(word) for word in schema.words)
    if isinstance(schema, list):
        return "a list"
    if isinstance(schema, tuple):
        return f"a list of {len(schema)}"
    if isinstance(schema, dict | Each):
        return "an object"
    return _WORDS.get(schema) or f"a {schema.__name__}"
