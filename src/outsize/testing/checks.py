"""What suites of checks share, without a test framework."""

from collections.abc import Callable, Mapping
from inspect import isfunction
from typing import Any


def checks_in(module: Mapping[str, Any]) -> tuple[Callable[[Any], None], ...]:
    """The checks of a module, given its `globals()`: its own public functions, in order."""
    return tuple(
        value
        for name, value in module.items()
        if isfunction(value) and value.__module__ == module["__name__"] and name[0] != "_"
    )


def refusal(kind: type[Exception], action: Callable[[], object]) -> str:
    """The message of the error that `action` raises; an `AssertionError` if it raises none."""
    try:
        action()
    except kind as error:
        return str(error)
    raise AssertionError(f"expected {kind.__name__}, but nothing was raised")
