"""An assertion that an action raises, without a test framework."""

from collections.abc import Callable


def refusal(kind: type[Exception], action: Callable[[], object]) -> str:
    """The message of the error that `action` raises; an `AssertionError` if it raises none."""
    try:
        action()
    except kind as error:
        return str(error)
    raise AssertionError(f"expected {kind.__name__}, but nothing was raised")
