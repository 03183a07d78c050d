"""Reading JSON files, and checking them against a schema or a checksum of their content.

A schema is a plain value that looks like what it describes:

- `str`, `bool`, `int` or `float` (which also accepts integers) match a value of that type; `object`
  matches any value; any other class matches its instances, for trees that hold more than JSON can;
- `Whole(minimum)` matches an integer of at least `minimum`; `Word(word, ...)` matches one of some
  strings;
- `[schema]` matches a list whose elements all match the schema; `(schema, ...)` matches a list of
  that length, each element with its own schema;
- `{"name": schema, ...}` matches an object that has at least these members; `Absent(schema)` makes
  a member optional;
- `Each(schema)` matches an object with any member names, whose values all match the schema;
- `OneOf(schema, ...)` matches a value that any of the schemas matches; `None` matches null.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_CHECKSUM = "checksum"


class SchemaError(ValueError):
    """JSON that does not match its schema; the message says where, and what was found there."""


@dataclass(frozen=True)
class Whole:
    """A 64-bit integer of at least a minimum."""

    minimum: int = 0


class Word:
    """One of several strings."""

    def __init__(self, *words: str) -> None:
        self.words = words


@dataclass(frozen=True)
class Absent:
    """An optional member of an object."""

    schema: Any


@dataclass(frozen=True)
class Each:
    """An object with any member names, whose values all match one schema."""

    schema: Any


class OneOf:
    """A value that matches any of several schemas."""

    def __init__(self, *schemas: Any) -> None:
        self.schemas = schemas


FILE_FACTS = {"bytes": Whole(), "sha256": str}
"""The schema of a file's size and checksum, as `outsize.files` returns them."""

_TYPE_NAMES = {str: "text", bool: "true or false", int: "a whole number", float: "a number"}


def read_json(path: Path, schema: Any) -> Any:
    """Read a JSON file and check it against a schema.

    Raises:
        SchemaError: It is not JSON, or does not match; one line that does not name the file.
        OSError: It cannot be read.
    """
    return parse_json(path.read_bytes(), schema)


def parse_json(content: bytes | str, schema: Any) -> Any:
    """Parse JSON and check it against a schema; raises a `SchemaError` if either fails."""
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
    """Raise a `SchemaError` if a value does not match a schema.

    Args:
        value: A value as `json.loads` returns it.
        schema: The schema it must match.
        where: Its path in the file, for the error message.
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
    """Whether a value is of the kind a schema describes, without looking at its members."""
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
    return _TYPE_NAMES.get(schema) or f"a {schema.__name__}"


def sealed(content: Mapping[str, Any]) -> str:
    """An object as JSON, with a checksum of its members as an additional member."""
    return json.dumps({**content, _CHECKSUM: checksum_of(content)}, indent=1)


def read_sealed(path: Path, schema: Mapping[str, Any]) -> dict[str, Any]:
    """Read a file that `sealed` made and verify its checksum, which is not part of the result.

    A file without a checksum was written before checksums existed, and only has to match the
    schema.

    Raises:
        SchemaError: It is damaged; one line that does not name the file.
        OSError: It cannot be read.
    """
    content: dict[str, Any] = read_json(path, schema)
    written = content.pop(_CHECKSUM, None)
    if written is not None and written != checksum_of(content):
        raise SchemaError("its checksum is not the one written")
    return content


def checksum_of(content: Mapping[str, Any]) -> str:
    """The SHA-256 of an object as JSON, whatever the order of its members."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
