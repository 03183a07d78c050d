"""Exceptions for errors that a user can cause and fix.

A message is one line that names the thing, the fact and the way out. The command line prints it and
exits with code 2. Any other exception is a bug and keeps its traceback. Each class also derives
from the built-in exception that a caller would expect.
"""


class OutsizeError(Exception):
    """Base class of the errors that a user can cause and fix."""


class ConfigError(OutsizeError, ValueError):
    """A run file, an override or an argument is invalid."""


class BudgetError(ConfigError):
    """A table cannot be made small enough for its budget."""


class NotEnoughMemoryError(OutsizeError, MemoryError):
    """A run needs more memory than is available."""


class DataError(OutsizeError, ValueError):
    """Input data does not have the documented form."""


class IdError(OutsizeError, IndexError):
    """An id is outside the range of its table."""


class NoWeightError(OutsizeError, AttributeError):
    """A compressed table has no matrix with one row per id."""


class NonFiniteError(OutsizeError, ArithmeticError):
    """A loss, gradient or weight is NaN or infinite."""


class OwnerError(OutsizeError, RuntimeError):
    """The rank that owns some rows refused a request, or could not be reached."""


class ReclusterError(OutsizeError, RuntimeError):
    """A reclustering failed on another rank; no rank has changed its table."""


class WriteError(OutsizeError, RuntimeError):
    """A file could not be written."""


class ExportError(OutsizeError, RuntimeError):
    """An exported model could not be written, or failed verification."""


class ItemIndexError(OutsizeError, RuntimeError):
    """An item index could not be written, or failed verification."""


class CheckpointError(OutsizeError, RuntimeError):
    """A checkpoint could not be written, or failed verification."""


class RanksError(OutsizeError, RuntimeError):
    """Ranks made different calls where all must make the same one, or one of them failed there."""


class LostRanksError(OutsizeError, RuntimeError):
    """Other ranks of the launch ended before their work was done."""


class CellError(OutsizeError, RuntimeError):
    """Some cells of a comparison failed; the others have finished."""


def one_line(error: BaseException, most: int = 1_000) -> str:
    """The message of an error on one line, cut to `most` characters."""
    return " ".join(str(error).split())[:most]
