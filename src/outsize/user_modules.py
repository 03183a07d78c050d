"""Modules of the user, imported before a run file is read, so that it can name what they enter."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Iterable

from outsize.errors import ConfigError

_imported: list[str] = []


def import_modules(names: Iterable[str]) -> None:
    """Import modules from the current folder or Python's path; each once, in order."""
    for name in names:
        if name not in _imported:
            _import(name)
            _imported.append(name)


def imported_modules() -> tuple[str, ...]:
    """What `import_modules` has imported in this process, for processes that it starts."""
    return tuple(_imported)


def _import(name: str) -> None:
    if name.endswith(".py") or not all(part.isidentifier() for part in name.split(".")):
        raise ConfigError(
            f"--import {name}: that is not the name of a module; "
            "the module of my_module.py is my_module"
        )
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)  # as `python -m` does
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise _failed(name, error) from error
        raise ConfigError(
            f"--import {name}: there is no module {error.name!r} in {here} or on Python's path"
        ) from None
    except Exception as error:
        raise _failed(name, error) from error


def _failed(name: str, error: Exception) -> ConfigError:
    """The error of a module as one line, with the place in it."""
    place = ""
    if not isinstance(error, SyntaxError):  # which says where it is
        last = traceback.extract_tb(error.__traceback__)[-1]
        place = f" ({os.path.basename(last.filename)}, line {last.lineno})"
    return ConfigError(
        f"--import {name}: the module cannot be imported: {type(error).__name__}: {error}{place}"
    )
