"""TOML to frozen dataclasses and back; unknown keys and wrong types are errors.

A field is a number, a string, a boolean, a list of those, an optional one (`T | None`), another
dataclass, a mapping from names to dataclasses, or a choice: a field with `kinds` in its metadata
holds one of several dataclasses, told apart by the key `kind`. A field with `switch` is a dataclass
or absent, and `true` stands for one with all defaults. Every message names the key and the way out.

Integers have 64 bits, as TOML has it, no number is NaN, and strings and lists have bounds that no
run comes near: what is beyond them is refused here, before any other code meets it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import json
import math
import re
import tomllib
import types
import typing
from collections.abc import Iterable, Mapping, MutableMapping
from pathlib import Path
from typing import Any, Literal, TypeVar

from outsize.errors import ConfigError
from outsize.registries import OWN_NAMES, name_of
from outsize.suggestions import few, suggestion
from outsize.training.toml_text import MAX_DEPTH, parse_toml

T = TypeVar("T")
_MAX_FILE_BYTES = 1 << 20
_MAX_CHARACTERS, _MAX_ITEMS = 1 << 12, 1 << 16
_SHOWN_CHARACTERS = 60
_NAME = re.compile(r"[A-Za-z0-9_-]{1,100}")  # what TOML takes as a key without quotes


def choice(kinds: Mapping[str, type], default: str) -> Any:
    """A dataclass field that holds one of several dataclasses, by name.

    Args:
        kinds: Name → dataclass, looked up when a section is read; one that can be changed is a
            registry, and errors say so.
        default: The name of a section that gives none.
    """
    return dataclasses.field(
        default_factory=lambda: kinds[default](), metadata={"kinds": kinds, "default": default}
    )


def optional_choice(kinds: Mapping[str, type], default: str) -> Any:
    """As `choice`, but absent without a section; `default` is the kind of one that names none."""
    return dataclasses.field(default=None, metadata={"kinds": kinds, "default": default})


def switch(kind: type) -> Any:
    """A dataclass field that is absent by default; `true` is a section with all defaults.

    Args:
        kind: The dataclass.
    """
    return dataclasses.field(default=None, metadata={"switch": kind})


def _near(path: Path) -> str:
    """What a path that is not there may have meant."""
    with contextlib.suppress(OSError):
        stems = {each.stem: each for each in path.parent.glob("*.toml")}
        if near := difflib.get_close_matches(path.stem, stems, n=1):
            return f". Did you mean {str(stems[near[0]])!r}?"
    return "; `outsize init DATA` writes a run file"


def read_toml(path: Path) -> dict[str, Any]:
    """Parse a TOML file; any flaw is one clear line."""
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_FILE_BYTES + 1)
        if len(content) > _MAX_FILE_BYTES:
            raise ConfigError(f"{path} is larger than {_MAX_FILE_BYTES:,} bytes: no run file is")
        return parse_toml(content.decode("utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file{_near(path)}") from None
    except IsADirectoryError:
        raise ConfigError(f"{path} is a folder; a run file is a TOML file") from None
    except ConfigError:
        raise
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None
    except ValueError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None


def override(tree: dict[str, Any], settings: Iterable[str]) -> dict[str, Any]:
    """Apply `a.b=value` settings to a copy of a tree; a value that is not TOML is a string."""
    tree = _copy(tree)
    for setting in settings:
        if any("\ud800" <= character <= "\udfff" for character in setting):
            raise ConfigError(f"--set {shown(setting)} is no UTF-8: rename the file that it names")
        name, sign, text = setting.partition("=")
        *tables, key = [part.strip() for part in name.split(".")]
        if not sign or not key or not all(tables):
            raise ConfigError(f"--set {shown(setting)} must look like section.key=value")
        if len(tables) >= MAX_DEPTH:
            raise ConfigError(f"--set {shown(setting)}: no key has {len(tables) + 1:,} parts")
        value = _setting_value(setting, text)
        node = tree
        for table in tables:
            node = node.setdefault(table, {})
            if not isinstance(node, dict):
                raise ConfigError(f"--set {shown(setting)}: {table!r} is a value, not a section")
        node[key] = value
    return tree


def _setting_value(setting: str, text: str) -> Any:
    try:
        values = list(parse_toml(f"value = {text}").values())
    except tomllib.TOMLDecodeError:
        return text.strip()
    except ValueError as error:
        raise ConfigError(f"--set {shown(setting)}: {error}") from None
    return values[0] if len(values) == 1 else text.strip()


def decode(kind: type[T], tree: Mapping[str, Any], source: str, path: str = "") -> T:
    """Build a dataclass from a parsed tree.

    Args:
        kind: The dataclass.
        tree: Keys and values as TOML gives them.
        source: Name of the file, for messages.
        path: Dotted path of this table within the file.
    """
    hints = typing.get_type_hints(kind)
    fields = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    for key, value in tree.items():
        if key not in fields:
            raise ConfigError(
                f"{source}: unknown key {shown(_at(path, key))}.{suggestion(key, fields)}"
            )
        values[key] = _decode_field(fields[key], hints[key], value, source, _at(path, key))
    required = (dataclasses.MISSING, dataclasses.MISSING)
    for name, field in fields.items():
        if name not in values and (field.default, field.default_factory) == required:
            raise ConfigError(f"{source}: {_at(path, name)!r} is missing and has no default")
    try:
        return kind(**values)
    except ConfigError as error:
        raise ConfigError(f"{source}: {f'[{path}] ' if path else ''}{error}") from None


def encode(config: Any) -> dict[str, Any]:
    """The tree that `decode` would read back as the same dataclass."""
    tree: dict[str, Any] = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if value is None:
            continue
        if dataclasses.is_dataclass(value):
            kinds = field.metadata.get("kinds")
            kind = {"kind": name_of(kinds, value)} if kinds else {}
            tree[field.name] = {**kind, **encode(value)}
        elif isinstance(value, Mapping):
            tree[field.name] = {name: encode(section) for name, section in value.items()}
        else:
            tree[field.name] = list(value) if isinstance(value, tuple) else value
    return tree


def flatten(tree: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Dotted keys to values."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            flat.update(flatten(value, _at(path, key)))
        else:
            flat[_at(path, key)] = value
    return flat


def to_toml(tree: Mapping[str, Any], path: str = "") -> str:
    """Write a tree as TOML: a table's values first, then its sub-tables."""
    lines = [f"{k} = {_value(v)}" for k, v in tree.items() if not isinstance(v, Mapping)]
    head = [f"[{path}]"] if path and (lines or not tree) else []
    text = "".join(f"{line}\n" for line in head + lines)
    tables = [to_toml(v, _at(path, k)) for k, v in tree.items() if isinstance(v, Mapping)]
    return "\n".join(part for part in (text, *tables) if part)


def shown(value: Any) -> str:
    """A value as written, shortened if it is long."""
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[: _SHOWN_CHARACTERS - 3]}..."


def _decode_field(
    field: dataclasses.Field[Any], hint: Any, value: Any, source: str, path: str
) -> Any:
    parts = [part for part in typing.get_args(hint) if part is not type(None)]
    hint = parts[0] if len(parts) == 1 and dataclasses.is_dataclass(parts[0]) else hint
    if typing.get_origin(hint) is Mapping:
        return _decode_sections(typing.get_args(hint)[1], value, source, path)
    kinds = field.metadata.get("kinds")
    switched = field.metadata.get("switch")
    if switched and not isinstance(value, Mapping):
        if not isinstance(value, bool):
            raise ConfigError(
                f"{source}: {path!r} must be true, false or a section, but got {shown(value)}"
            )
        return switched() if value else None
    if not kinds and not (dataclasses.is_dataclass(hint) and isinstance(hint, type)):
        return _decode_value(hint, value, source, path)
    if not isinstance(value, Mapping):
        raise ConfigError(f"{source}: {path!r} must be a section, but got {shown(value)}")
    if kinds:
        rest = dict(value)
        default = field.metadata.get("default") or next(
            key for key, kind in kinds.items() if kind is field.default_factory
        )
        kind = rest.pop("kind", default)
        if not isinstance(kind, str) or kind not in kinds:
            own = f". {OWN_NAMES}" if isinstance(kinds, MutableMapping) else ""
            raise ConfigError(
                f"{source}: {path}.kind = {shown(kind)} is unknown.{suggestion(str(kind), kinds)} "
                f"There are: {', '.join(kinds)}{own}"
            )
        _require_of_kind(kind, kinds, rest, source, path)
        return decode(kinds[kind], rest, source, path)
    return decode(hint, value, source, path)


def _require_of_kind(
    kind: str, kinds: Mapping[str, type], section: Mapping[str, Any], source: str, path: str
) -> None:
    """Raise if a key belongs to sections of other kinds, as where a run file's kind was changed."""
    names = {name: set(getattr(each, "__dataclass_fields__", ())) for name, each in kinds.items()}
    for key in section:
        others = [name for name in kinds if key in names[name]]
        if others and kind not in others:
            raise ConfigError(
                f"{source}: {_at(path, key)!r} is a key of {path}.kind = {few(map(repr, others))}, "
                f"but the kind is {kind!r}: remove it. Known: {', '.join(sorted(names[kind]))}."
            )


def _decode_sections(kind: type[T], value: Any, source: str, path: str) -> dict[str, T]:
    """A section for each name."""
    if not isinstance(value, Mapping):
        raise ConfigError(f"{source}: {path!r} must be a section, but got {shown(value)}")
    sections = {}
    for name, section in value.items():
        if not _NAME.fullmatch(name):
            raise ConfigError(
                f"{source}: {shown(_at(path, name))} must be named by letters, digits, _ and - only"
            )
        if not isinstance(section, Mapping):
            raise ConfigError(
                f"{source}: {shown(_at(path, name))} must be a section, but got {shown(section)}"
            )
        sections[name] = decode(kind, section, source, _at(path, name))
    return sections


def _decode_value(hint: Any, value: Any, source: str, path: str) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is types.UnionType or origin is typing.Union:
        (inner,) = [part for part in arguments if part is not type(None)]
        return _decode_value(inner, value, source, path)
    if origin is Literal:
        if value not in arguments:
            words = ", ".join(repr(word) for word in arguments)
            raise ConfigError(
                f"{source}: {path} must be one of {words}, but got {shown(value)}."
                f"{suggestion(str(value), [str(word) for word in arguments])}"
            )
        return value
    if origin is tuple:
        if not isinstance(value, list):
            raise ConfigError(f"{source}: {path} must be a list, but got {shown(value)}")
        if len(value) > _MAX_ITEMS:
            raise ConfigError(
                f"{source}: {path} is a list of {len(value):,}, more than the {_MAX_ITEMS:,} that "
                "a run file may have"
            )
        inner = arguments[0]
        return tuple(_decode_value(inner, v, source, f"{path}[{i}]") for i, v in enumerate(value))
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        try:
            value = float(value)
        except OverflowError:
            raise ConfigError(f"{source}: {path} must be a number below 1e308") from None
    if type(value) is not hint:
        wanted = {int: "an integer", float: "a number", str: "a string", bool: "true or false"}
        raise ConfigError(
            f"{source}: {path} must be {wanted.get(hint, hint)}, but got {shown(value)}"
        )
    _require_within_bounds(value, source, path)
    return value


def _require_within_bounds(value: Any, source: str, path: str) -> None:
    """Refuse values that no key can have, such as NaN."""
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        raise ConfigError(f"{source}: {path} must be a 64-bit integer, but got {shown(value)}")
    if isinstance(value, float) and math.isnan(value):
        raise ConfigError(f"{source}: {path} must be a number, but got nan")
    if isinstance(value, str) and len(value) > _MAX_CHARACTERS:
        raise ConfigError(
            f"{source}: {path} is a string of {len(value):,} characters, more than the "
            f"{_MAX_CHARACTERS:,} that a run file may have"
        )


def _at(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _value(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(_value(item) for item in value)}]"
    if isinstance(value, float):
        return repr(value)
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _copy(tree: Mapping[str, Any]) -> dict[str, Any]:
    return {k: _copy(v) if isinstance(v, Mapping) else v for k, v in tree.items()}
