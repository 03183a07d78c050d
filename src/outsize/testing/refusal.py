"""Asserting that something is refused, without a test framework."""

from collections.abc import Callable


def refusal(kind: type[Exception], action: Callable[[], object]) -> str:
    """The message with which `action` is refused; an `AssertionError` if it is not."""
    try:
        action()
    except kind as error:
        return str(error)
    raise AssertionError(f"expected {kind.__name__}, but nothing was raised")
